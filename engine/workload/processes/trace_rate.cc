// A trace's calls over time set the rate, of all adapters together or of each.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/workload/arrival_process.h"

namespace servelab {

class TraceRateArrivals final : public ArrivalKind {
 public:
  std::vector<std::string> uses() const override {
    return {"rate", "cv", "gaps", "per_adapter", "trace", "start_s", "window_s", "speed"};
  }
  bool follows_trace_adapters(const ArrivalSettings& settings) const override {
    return settings.per_adapter;
  }
  void generate(ArrivalGenerator* to) const override {
    const ArrivalSettings& settings = to->settings();
    const std::size_t items = to->items();
    const bool per_second = settings.trace.rfind("caraserve-rate", 0) == 0;
    const FunctionTrace trace = to->load(per_second ? 1 : 60);
    const double scale = to->scale_of(trace);
    const double bin_s = trace.bin_s / settings.speed;
    const GapSampler gaps(gap_kind_of(settings.gaps), settings.cv);
    const std::size_t streams = settings.per_adapter ? items : 1;
    check_trace_size(streams, trace.bins);
    std::vector<std::uint32_t> item_of(trace.functions, 0);
    if (settings.per_adapter) {
      item_of = to->item_of_function(trace);
      to->note_shares(trace, item_of);
    }
    std::vector<std::vector<double>> rates(streams);
    for (std::size_t f = 0; f < trace.functions; ++f) {
      std::vector<double>& sum = rates[item_of[f]];
      sum.resize(trace.bins, 0.0);
      const auto counts = trace.of(f);
      for (std::size_t b = 0; b < trace.bins; ++b) sum[b] += counts[b] * scale;
    }
    std::vector<ProcessOfItem> processes;
    for (std::size_t i = 0; i < streams; ++i) {
      if (rates[i].empty()) continue;
      const auto item = static_cast<std::uint32_t>(i);
      processes.push_back(
          {settings.per_adapter ? item : kAnyItem,
           std::make_unique<BinnedProcess>(to->stream(i), gaps, std::move(rates[i]), bin_s)});
    }
    to->merge(std::move(processes));
  }
};
}  // namespace servelab

SERVELAB_ARRIVALS("trace-rate", TraceRateArrivals)
