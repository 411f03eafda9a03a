// The scalar metrics of a run. In symbols, for request i: a_i scheduled arrival, s_i first entered
// a step (admitted), f_i first output token, l_i last output token, o_i output tokens produced. F
// is the set of finished requests; T the stamp of the run's last event.
//
// Latencies are over F only: rejected and unfinished requests have no last token, are counted in
// requests_rejected and requests_unfinished, and make no latency better or worse. Throughputs count
// every token that was produced, also those of requests that were cut off. Percentiles interpolate
// linearly between order statistics (position q (m - 1) of m values, numpy's default). A metric
// without any value is NaN.
#ifndef SERVELAB_RECORD_SUMMARY_H_
#define SERVELAB_RECORD_SUMMARY_H_

#include <string>
#include <vector>

#include "engine/serve/recorder.h"
#include "engine/serve/request.h"

namespace servelab {

struct Metric {
  std::string name;  // ends in its unit where it has one: _s, _per_s
  double value = 0;
};
using Summary = std::vector<Metric>;

//   requests_total, _finished, _rejected, _unfinished
//   duration_s                           T
//   latency_per_token_mean_s             sum_F (l_i - a_i) / sum_F o_i       (dLoRA 7.1)
//   latency_per_token_mean_of_ratios_s   mean_F (l_i - a_i) / o_i            (dLoRA's artifact)
//   latency_per_token_{p50,p90,p95,p99}_s  percentiles over F of (l_i - a_i) / o_i
//   latency_{mean,p50,p90,p95,p99}_s     l_i - a_i
//   ttft_{...}_s                         f_i - a_i
//   tpot_{...}_s                         (l_i - f_i) / (o_i - 1), requests with o_i > 1
//   itl_mean_s                           sum_F (l_i - f_i) / sum_F (o_i - 1): the mean gap
//   itl_{p50,p90,p95,p99}_s              from the histogram of all gaps (bins at most 1.6 % wide)
//   queueing_{...}_s                     s_i - a_i
//   requests_per_s, output_tokens_per_s  |F| / T, tokens produced / T
//   total_tokens_per_s                   (tokens produced + prompts that were prefilled) / T
//   steps, merged_step_share, switches, adapter_loads, preemptions
//   {base,dense,attention,lora,collective,host,switching,load_wait,swap,busy,scheduling}_time_s
//                                        summed over replicas; base = dense + attention +
//                                        collective + host; busy leaves load_wait and scheduling
//                                        out; scheduling: wall time, real backends only
//   arrival_lag_max_s                    longest time from a scheduled arrival to its entry
//   {base,dense,lora}_time_per_step_s
//   rebalances, solver_failures          times that the cluster policy decided, and that it failed
//   solver_time_s                        what deciding took, as charged
//   migrations                           requests that left a replica for another
//   requests_held_back, requests_turned_away  arrivals that found their replica full; only with
//                                        cluster.max_waiting
Summary summarize(const Workload& workload, const RunRecord& record);

double value_of(const Summary& summary, const std::string& name);  // NaN when absent

// Linear interpolation between order statistics; `sorted` ascending. NaN when empty.
double percentile(const std::vector<double>& sorted, double q);

}  // namespace servelab

#endif  // SERVELAB_RECORD_SUMMARY_H_
