// Renewal processes at a constant rate, for all adapters together or for each on its own.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/workload/arrival_process.h"

namespace servelab {
namespace {

class Steady : public ArrivalKind {
 public:
  Steady(GapKind gaps, bool has_cv) : gaps_(gaps), has_cv_(has_cv) {}
  std::vector<std::string> uses() const override {
    return has_cv_ ? std::vector<std::string>{"rate", "per_adapter", "cv"}
                   : std::vector<std::string>{"rate", "per_adapter"};
  }
  void generate(ArrivalGenerator* to) const override {
    const GapSampler gaps(gaps_, to->settings().cv);
    if (to->settings().per_adapter) {
      return to->per_item([&](std::uint32_t item, double rate) {
        return std::make_unique<SteadyProcess>(to->stream(item), gaps, rate);
      });
    }
    std::vector<ProcessOfItem> one;
    one.push_back({kAnyItem, std::make_unique<SteadyProcess>(to->stream(0), gaps, to->rate())});
    to->merge(std::move(one));
  }

 private:
  const GapKind gaps_;
  const bool has_cv_;
};

struct Poisson final : Steady {
  Poisson() : Steady(GapKind::kExponential, false) {}
};
struct Gamma final : Steady {
  Gamma() : Steady(GapKind::kGamma, true) {}
};
struct LogNormal final : Steady {
  LogNormal() : Steady(GapKind::kLogNormal, true) {}
};
struct Weibull final : Steady {
  Weibull() : Steady(GapKind::kWeibull, true) {}
};
struct Even final : Steady {
  Even() : Steady(GapKind::kEven, false) {}
};
}  // namespace
}  // namespace servelab

SERVELAB_ARRIVALS("poisson", Poisson)
SERVELAB_ARRIVALS("gamma", Gamma)
SERVELAB_ARRIVALS("lognormal", LogNormal)
SERVELAB_ARRIVALS("weibull", Weibull)
SERVELAB_ARRIVALS("even", Even)
