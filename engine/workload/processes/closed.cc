// Everyone at once.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/workload/arrival_process.h"

namespace servelab {

class ClosedArrivals final : public ArrivalKind {
 public:
  std::vector<std::string> uses() const override { return {}; }
  bool has_rate() const override { return false; }
  void generate(ArrivalGenerator* to) const override {
    if (to->max_requests() == ArrivalGenerator::kNoBound) {
      to->fail("process", "process closed needs 'requests'");
    }
    to->plan().arrivals.resize(to->max_requests());
  }
};
}  // namespace servelab

SERVELAB_ARRIVALS("closed", ClosedArrivals)
