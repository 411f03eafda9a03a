// Clients of ServeGen: each with a rate and a burstiness that change over time.
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/portable_math.h"
#include "engine/workload/arrival_process.h"

namespace servelab {

class ServegenArrivals final : public ArrivalKind {
 public:
  std::vector<std::string> uses() const override {
    return {"rate", "trace", "start_s", "window_s", "speed"};
  }
  bool follows_trace_adapters(const ArrivalSettings& /*settings*/) const override { return true; }
  void generate(ArrivalGenerator* to) const override {
    const ArrivalSettings& settings = to->settings();
    const FunctionTrace trace = to->load(600);
    if (trace.gap_cv.empty()) {
      to->fail("trace",
               "process servegen needs a trace servegen-...; got '" + settings.trace + "'");
    }
    const double scale = to->scale_of(trace);
    const auto item_of = to->item_of_function(trace);
    to->note_shares(trace, item_of);
    // Samplers by (kind, coefficient of variation to 1 %): a Weibull one is slow to set up.
    std::map<int, GapSampler> samplers;
    const auto sampler_of = [&](float gap_cv) -> const GapSampler& {
      const int step = static_cast<int>(std::lround(portable::log(std::abs(gap_cv)) * 100));
      const int key = gap_cv < 0 ? -10000 + step : 10000 + step;
      const auto found = samplers.find(key);
      if (found != samplers.end()) return found->second;
      const GapKind kind = gap_cv < 0 ? GapKind::kWeibull : GapKind::kGamma;
      return samplers.emplace(key, GapSampler(kind, portable::exp(step / 100.0))).first->second;
    };
    std::vector<ProcessOfItem> processes;
    for (std::size_t f = 0; f < trace.functions; ++f) {
      std::vector<double> rates(trace.bins);
      const auto counts = trace.of(f);
      for (std::size_t b = 0; b < trace.bins; ++b) rates[b] = counts[b] * scale;
      processes.push_back(
          {item_of[f],
           std::make_unique<BinnedProcess>(
               to->stream(f), GapSampler(), std::move(rates), trace.bin_s / settings.speed,
               [&trace, &sampler_of, f](std::size_t bin) -> const GapSampler& {
                 return sampler_of(trace.gap_cv[f * trace.bins + bin]);
               })});
    }
    to->merge(std::move(processes));
  }
};
}  // namespace servelab

SERVELAB_ARRIVALS("servegen", ServegenArrivals)
