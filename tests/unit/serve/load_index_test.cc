// The tournament of replicas against a look at each.
#include "engine/serve/load_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "engine/core/rng.h"

namespace servelab {
namespace {

TEST(LoadIndex, IsTheFirstOfTheLeastLoaded) {
  RngStream rng(1, "load index");
  for (std::size_t count = 1; count <= 33; ++count) {
    LoadIndex index(count);
    std::vector<std::size_t> loads(count);
    for (int change = 0; change < 300; ++change) {
      const auto which = static_cast<std::size_t>(rng.below(count));
      loads[which] = static_cast<std::size_t>(rng.below(5));
      index.set(which, loads[which]);
      const auto least = std::min_element(loads.begin(), loads.end()) - loads.begin();
      ASSERT_EQ(index.least(), static_cast<std::size_t>(least)) << count << " replicas";
    }
  }
}

}  // namespace
}  // namespace servelab
