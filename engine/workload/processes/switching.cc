// Each adapter's rate changes from time to time (the placement paper's unpredictable arrivals).
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/workload/arrival_process.h"

namespace servelab {

class SwitchingArrivals final : public ArrivalKind {
 public:
  std::vector<std::string> uses() const override {
    return {"rate", "cv", "update_s", "factor", "max_factor"};
  }
  void generate(ArrivalGenerator* to) const override {
    to->per_item([to](std::uint32_t item, double rate) {
      return std::make_unique<SwitchingProcess>(
          to->stream(item), RngStream(to->inputs().seed, "switching", item), to->settings(), rate);
    });
  }
};
}  // namespace servelab

SERVELAB_ARRIVALS("switching", SwitchingArrivals)
