// dLoRA's use of Azure Functions: the trace gives each adapter's share per interval, no more.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/workload/arrival_process.h"

namespace servelab {

class TraceSharesArrivals final : public ArrivalKind {
 public:
  std::vector<std::string> uses() const override {
    return {"rate", "cv", "gaps", "trace", "interval_s", "start_s", "window_s", "correlated"};
  }
  bool follows_trace_adapters(const ArrivalSettings& /*settings*/) const override { return true; }
  void generate(ArrivalGenerator* to) const override {
    const ArrivalSettings& settings = to->settings();
    const std::size_t items = to->items();
    if (to->max_requests() == ArrivalGenerator::kNoBound)
      to->fail("process", "process trace-shares needs 'requests' or 'requests_per_rate'");
    const FunctionTrace trace = to->load(settings.interval_s);
    const auto item_of = to->item_of_function(trace);
    std::vector<std::vector<double>> intervals;  // calls per item; silent intervals are left out
    for (std::size_t b = 0; b < trace.bins; ++b) {
      std::vector<double> calls(items, 0.0);
      double sum = 0;
      for (std::size_t f = 0; f < trace.functions; ++f) {
        calls[item_of[f]] += trace.of(f)[b];
        sum += trace.of(f)[b];
      }
      if (sum <= 0) continue;
      for (double& call : calls) call /= sum;
      intervals.push_back(std::move(calls));
    }
    const double total = to->rate();
    const GapSampler gaps(gap_kind_of(settings.gaps), settings.cv);
    const std::size_t n = intervals.size();
    // Every interval has the same number of requests, whatever the trace had.
    to->plan().shares.assign(items, 0.0);
    for (const std::vector<double>& calls : intervals) {
      for (std::size_t i = 0; i < items; ++i)
        to->plan().shares[i] += calls[i] / static_cast<double>(n);
    }
    double start_s = 0;
    for (std::size_t k = 0; k < n; ++k) {
      const std::size_t quota = (k + 1) * to->max_requests() / n - k * to->max_requests() / n;
      std::vector<ProcessOfItem> processes;
      for (std::size_t i = 0; i < items; ++i) {
        const double share = intervals[k][i];
        if (share <= 0) continue;
        RngStream rng = settings.correlated ? to->stream(0) : to->stream(k * items + i);
        processes.push_back({static_cast<std::uint32_t>(i),
                             std::make_unique<SteadyProcess>(rng, gaps, share * total, start_s)});
      }
      const auto part = merge_processes(&processes, quota, to->end());
      to->plan().arrivals.insert(to->plan().arrivals.end(), part.begin(), part.end());
      if (part.size() < quota) break;  // duration_s ends the workload
      if (!part.empty()) start_s = to_seconds(part.back().at);
    }
  }
};
}  // namespace servelab

SERVELAB_ARRIVALS("trace-shares", TraceSharesArrivals)
