#include "engine/record/summary.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace servelab {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
struct NamedQuantile {
  const char* name;
  double q;
};
constexpr NamedQuantile kQuantiles[] = {{"p50", 0.5}, {"p90", 0.9}, {"p95", 0.95}, {"p99", 0.99}};

double ratio(double numerator, double denominator) {
  return denominator == 0 ? kNan : numerator / denominator;
}

double mean(const std::vector<double>& values) {
  return ratio(std::accumulate(values.begin(), values.end(), 0.0),
               static_cast<double>(values.size()));
}

// Per-request values of the finished requests, in seconds.
struct Samples {
  std::vector<double> latency, ttft, tpot, queueing, latency_per_token;
  // Exact sums in ns, so that no order of addition matters.
  std::int64_t latency_ns = 0, output_tokens = 0;
  std::int64_t finished = 0, rejected = 0, unfinished = 0;
  std::int64_t produced = 0, prefilled = 0, preemptions = 0;
};

Samples collect(const Workload& workload, const RunRecord& record) {
  Samples s;
  for (std::size_t i = 0; i < record.requests.size(); ++i) {
    const Request& request = workload.requests[i];
    const RequestRecord& r = record.requests[i];
    s.produced += r.generated;
    s.preemptions += r.preemptions;
    if (r.first_token != kUnset) s.prefilled += request.prompt_tokens;
    if (r.status != RequestStatus::kFinished) {
      ++(r.status == RequestStatus::kRejected ? s.rejected : s.unfinished);
      continue;
    }
    ++s.finished;
    const TimeNs latency = r.last_token - request.arrival;
    s.latency_ns += latency;
    s.output_tokens += r.generated;
    s.latency.push_back(to_seconds(latency));
    s.latency_per_token.push_back(to_seconds(latency) / r.generated);
    s.ttft.push_back(to_seconds(r.first_token - request.arrival));
    s.queueing.push_back(to_seconds(r.admitted - request.arrival));
    if (r.generated > 1) {
      s.tpot.push_back(to_seconds(r.last_token - r.first_token) / (r.generated - 1));
    }
  }
  return s;
}

// The rank of the order statistic at or below quantile `q`.
std::size_t rank_below(const std::vector<double>& values, double q) {
  return values.empty() ? 0 : static_cast<std::size_t>(q * static_cast<double>(values.size() - 1));
}

class Builder {
 public:
  void add(const std::string& name, double value) { summary_.push_back({name, value}); }
  void count(const std::string& name, std::int64_t value) { add(name, static_cast<double>(value)); }
  void quantiles(const std::string& name, std::vector<double>* values) {
    auto sorted_to = values->begin();
    for (const NamedQuantile& at : kQuantiles) {  // ascending
      // Only the two order statistics that percentile() reads need be in place.
      for (std::size_t rank = rank_below(*values, at.q), end = rank + 2; rank < end; ++rank) {
        if (rank >= values->size()) break;
        const auto nth = values->begin() + static_cast<std::ptrdiff_t>(rank);
        if (nth < sorted_to) continue;
        std::nth_element(sorted_to, nth, values->end());
        sorted_to = nth + 1;
      }
      add(name + "_" + at.name + "_s", percentile(*values, at.q));
    }
  }
  void distribution(const std::string& name, std::vector<double>* values) {
    add(name + "_mean_s", mean(*values));
    quantiles(name, values);
  }
  Summary take() { return std::move(summary_); }

 private:
  Summary summary_;
};

void add_latencies(Samples* s, const LatencyHistogram& itl, Builder* out) {
  out->add("latency_per_token_mean_s",
           ratio(to_seconds(s->latency_ns), static_cast<double>(s->output_tokens)));
  out->add("latency_per_token_mean_of_ratios_s", mean(s->latency_per_token));
  out->quantiles("latency_per_token", &s->latency_per_token);
  out->distribution("latency", &s->latency);
  out->distribution("ttft", &s->ttft);
  out->distribution("tpot", &s->tpot);
  // Mean and percentiles are over every gap of the run, also of requests that did not finish.
  out->add("itl_mean_s", ratio(to_seconds(itl.sum()), static_cast<double>(itl.count())));
  const bool any = itl.count() > 0;
  for (const NamedQuantile& at : kQuantiles) {
    out->add(std::string("itl_") + at.name + "_s", any ? itl.quantile(at.q) / kNsPerSecond : kNan);
  }
  out->distribution("queueing", &s->queueing);
}

void add_replica_times(const RunRecord& record, Builder* out) {
  ReplicaTotals t;
  for (const ReplicaTotals& r : record.replicas) {
    t.steps += r.steps;
    t.merged_steps += r.merged_steps;
    t.switches += r.switches;
    t.loads += r.loads;
    t.dense += r.dense;
    t.attention += r.attention;
    t.lora += r.lora;
    t.collective += r.collective;
    t.host += r.host;
    t.switching += r.switching;
    t.load_wait += r.load_wait;
    t.swap += r.swap;
    t.busy += r.busy;
    t.scheduling += r.scheduling;
  }
  const auto steps = static_cast<double>(t.steps);
  const TimeNs base = t.dense + t.attention + t.collective + t.host;
  out->count("steps", t.steps);
  out->add("merged_step_share", ratio(static_cast<double>(t.merged_steps), steps));
  out->count("switches", t.switches);
  out->count("adapter_loads", t.loads);
  const std::pair<const char*, TimeNs> times[] = {{"base", base},
                                                  {"dense", t.dense},
                                                  {"attention", t.attention},
                                                  {"lora", t.lora},
                                                  {"collective", t.collective},
                                                  {"host", t.host},
                                                  {"switching", t.switching},
                                                  {"load_wait", t.load_wait},
                                                  {"swap", t.swap},
                                                  {"busy", t.busy},
                                                  {"scheduling", t.scheduling}};
  for (const auto& [name, time] : times) {
    out->add(std::string(name) + "_time_s", to_seconds(time));
  }
  out->add("arrival_lag_max_s", to_seconds(record.arrival_lag_max));
  out->add("base_time_per_step_s", ratio(to_seconds(base), steps));
  out->add("dense_time_per_step_s", ratio(to_seconds(t.dense), steps));
  out->add("lora_time_per_step_s", ratio(to_seconds(t.lora), steps));
}

}  // namespace

double percentile(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) return kNan;
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  if (below + 1 >= sorted.size()) return sorted.back();
  const double inside = position - static_cast<double>(below);
  return sorted[below] + inside * (sorted[below + 1] - sorted[below]);
}

Summary summarize(const Workload& workload, const RunRecord& record) {
  Samples s = collect(workload, record);
  Builder out;
  out.count("requests_total", static_cast<std::int64_t>(record.requests.size()));
  out.count("requests_finished", s.finished);
  out.count("requests_rejected", s.rejected);
  out.count("requests_unfinished", s.unfinished);
  const double duration = to_seconds(record.end);
  out.add("duration_s", duration);
  add_latencies(&s, record.itl, &out);
  out.add("requests_per_s", ratio(static_cast<double>(s.finished), duration));
  out.add("output_tokens_per_s", ratio(static_cast<double>(s.produced), duration));
  out.add("total_tokens_per_s", ratio(static_cast<double>(s.produced + s.prefilled), duration));
  out.count("preemptions", s.preemptions);
  add_replica_times(record, &out);
  out.count("rebalances", record.cluster.rebalances);
  out.count("solver_failures", record.cluster.failures);
  out.add("solver_time_s", to_seconds(record.cluster.decision_time));
  out.count("migrations", record.cluster.migrations);
  if (record.cluster.held_back >= 0) {
    out.count("requests_held_back", record.cluster.held_back);
    out.count("requests_turned_away", record.cluster.turned_away);
  }
  return out.take();
}

double value_of(const Summary& summary, const std::string& name) {
  for (const Metric& metric : summary) {
    if (metric.name == name) return metric.value;
  }
  return kNan;
}

}  // namespace servelab
