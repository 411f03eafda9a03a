#include "engine/workload/arrivals.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <utility>

#include "engine/core/portable_math.h"
#include "engine/workload/function_trace.h"
#include "engine/workload/renewal.h"

namespace servelab {
namespace {

constexpr std::size_t kNoBound = SIZE_MAX;
constexpr char kStream[] = "arrivals";
constexpr double kMostRequests = 2e8;

GapKind gap_kind_of(const std::string& name) {
  if (name == "gamma") return GapKind::kGamma;
  if (name == "lognormal") return GapKind::kLogNormal;
  if (name == "weibull") return GapKind::kWeibull;
  if (name == "even") return GapKind::kEven;
  return GapKind::kExponential;
}

class Generator {
 public:
  explicit Generator(const ArrivalInputs& inputs)
      : inputs_(inputs),
        all_(*inputs.settings),
        arrivals_(inputs.settings->arrivals),
        items_(inputs.shares->size()) {
    if (all_.bounds.requests > 0) max_requests_ = static_cast<std::size_t>(all_.bounds.requests);
    if (all_.bounds.requests_per_rate > 0) max_requests_ = requests_of_rate();
    if (all_.bounds.duration_s > 0) end_ = from_seconds(all_.bounds.duration_s);
  }

  ArrivalPlan run() {
    const std::string& process = arrivals_.process;
    const bool is_bounded = max_requests_ != kNoBound || end_ != kNever;
    if (!is_bounded && process != "replay") fail("process", "set 'requests' or 'duration_s'");
    if (process == "closed") {
      closed();
    } else if (process == "trace-rate") {
      trace_rate();
    } else if (process == "trace-shares") {
      trace_shares();
    } else if (process == "servegen") {
      servegen();
    } else if (process == "replay") {
      replay_trace(inputs_, max_requests_, end_, &plan_);
    } else if (process == "switching") {
      per_item([&](std::uint32_t item, double rate) {
        return std::make_unique<SwitchingProcess>(
            stream(item), RngStream(inputs_.seed, "switching", item), arrivals_, rate);
      });
    } else {
      steady(gap_kind_of(process));
    }
    const bool ran_out = is_bounded && end_ == kNever && plan_.arrivals.size() < max_requests_;
    if (ran_out && process != "replay") {
      fail("rate", "only " + std::to_string(plan_.arrivals.size()) + " of " +
                       std::to_string(max_requests_) +
                       " requests arrive within 285 years, the end of time here; raise 'rate'");
    }
    return std::move(plan_);
  }

 private:
  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    fail_at(inputs_, key, what);
  }

  RngStream stream(std::uint64_t item) const { return RngStream(inputs_.seed, kStream, item); }

  // Of a generated process: as set, else the sum of the weights, else 1.
  double rate() {
    plan_.rate_per_s = arrivals_.rate_per_s > 0 ? arrivals_.rate_per_s : inputs_.weight_sum;
    if (plan_.rate_per_s > 0) return plan_.rate_per_s;
    if (inputs_.section->find("rate") != nullptr) {
      fail("rate", "'rate' must be above 0 unless popularity.weights or a trace gives it");
    }
    return plan_.rate_per_s = 1;
  }

  std::size_t requests_of_rate() {
    const std::string& process = arrivals_.process;
    if (all_.bounds.requests > 0) {
      fail("rate", "set 'requests' or 'requests_per_rate', not both");
    }
    if (process == "closed" || process == "replay" || arrivals_.rate_per_s <= 0) {
      fail("rate", "'requests_per_rate' needs an arrivals.rate above 0");
    }
    const double requests = all_.bounds.requests_per_rate * arrivals_.rate_per_s;
    if (requests > kMostRequests) {
      fail("rate", "'requests_per_rate' times 'rate' makes more than 200 million requests");
    }
    return static_cast<std::size_t>(std::max(1.0, std::round(requests)));
  }

  // Notes what each item's calls over the whole trace come to.
  void note_shares(const FunctionTrace& trace, const std::vector<std::uint32_t>& item_of) {
    plan_.shares.assign(items_, 0.0);
    double sum = 0;
    for (std::size_t f = 0; f < trace.functions; ++f) {
      plan_.shares[item_of[f]] += trace.total(f);
      sum += trace.total(f);
    }
    for (double& share : plan_.shares) share = sum > 0 ? share / sum : 0;
  }

  template <class Make>
  void per_item(const Make& make) {
    std::vector<ProcessOfItem> processes;
    const double total = rate();
    for (std::size_t i = 0; i < items_; ++i) {
      const double share = (*inputs_.shares)[i];
      if (share <= 0) continue;
      const auto item = static_cast<std::uint32_t>(i);
      processes.push_back({item, make(item, share * total)});
    }
    plan_.arrivals = merge_processes(&processes, max_requests_, end_);
  }

  void steady(GapKind kind) {
    const GapSampler gaps(kind, arrivals_.cv);
    if (arrivals_.per_adapter) {
      per_item([&](std::uint32_t item, double rate) {
        return std::make_unique<SteadyProcess>(stream(item), gaps, rate);
      });
      return;
    }
    std::vector<ProcessOfItem> one;
    one.push_back({kAnyItem, std::make_unique<SteadyProcess>(stream(0), gaps, rate())});
    plan_.arrivals = merge_processes(&one, max_requests_, end_);
  }

  void closed() {
    if (max_requests_ == kNoBound) fail("process", "process closed needs 'requests'");
    plan_.arrivals.resize(max_requests_);
  }

  FunctionTrace load(double bin_s) {
    if (arrivals_.trace.empty()) {
      fail("process", "process " + arrivals_.process + " needs 'trace'");
    }
    FunctionTraceRequest request;
    request.name = arrivals_.trace;
    request.role = "arrivals";
    request.data_dir = inputs_.data_dir;
    request.embedded_allowed = all_.bounds.fallback == "embedded";
    request.bin_s = bin_s;
    request.start_s = arrivals_.start_s;
    request.window_s = arrivals_.window_s;
    request.functions = static_cast<std::size_t>(all_.popularity.functions);
    const ConfigNode* node = inputs_.section->find("trace");
    request.mark = node != nullptr ? node->mark : inputs_.section->mark;
    FunctionTrace trace = load_function_trace(request);
    if (trace.bin_s == 0) {
      fail("trace", "trace '" + arrivals_.trace +
                        "' gives popularity only, no times; use it as popularity.trace");
    }
    plan_.sources.push_back(trace.source);
    return trace;
  }

  std::vector<std::uint32_t> mapping(const FunctionTrace& trace) const {
    return map_functions(trace, items_, static_cast<std::size_t>(all_.popularity.skewness),
                         all_.popularity.sort);
  }

  // Adds up the counts of all functions (or of those of one item); scaled to arrivals per simulated
  // second.
  double scale_of(const FunctionTrace& trace) {
    const double bin_s = trace.bin_s / arrivals_.speed;
    double sum = 0;
    for (const float count : trace.counts) sum += count;
    if (arrivals_.rate_per_s <= 0) {
      note_own_rate(sum / (bin_s * static_cast<double>(trace.bins)), &plan_);
      return 1 / bin_s;
    }
    return arrivals_.rate_per_s * static_cast<double>(trace.bins) / sum;
  }

  void trace_rate() {
    const bool per_second = arrivals_.trace.rfind("caraserve-rate", 0) == 0;
    const FunctionTrace trace = load(per_second ? 1 : 60);
    const double scale = scale_of(trace);
    const double bin_s = trace.bin_s / arrivals_.speed;
    const GapSampler gaps(gap_kind_of(arrivals_.gaps), arrivals_.cv);
    const std::size_t streams = arrivals_.per_adapter ? items_ : 1;
    check_trace_size(streams, trace.bins);
    std::vector<std::uint32_t> item_of(trace.functions, 0);
    if (arrivals_.per_adapter) {
      item_of = mapping(trace);
      note_shares(trace, item_of);
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
          {arrivals_.per_adapter ? item : kAnyItem,
           std::make_unique<BinnedProcess>(stream(i), gaps, std::move(rates[i]), bin_s)});
    }
    plan_.arrivals = merge_processes(&processes, max_requests_, end_);
  }

  // dLoRA's use of Azure Functions: the trace gives each adapter's share per interval, no more.
  void trace_shares() {
    if (max_requests_ == kNoBound)
      fail("process", "process trace-shares needs 'requests' or 'requests_per_rate'");
    const FunctionTrace trace = load(arrivals_.interval_s);
    const auto item_of = mapping(trace);
    std::vector<std::vector<double>> intervals;  // calls per item; silent intervals are left out
    for (std::size_t b = 0; b < trace.bins; ++b) {
      std::vector<double> calls(items_, 0.0);
      double sum = 0;
      for (std::size_t f = 0; f < trace.functions; ++f) {
        calls[item_of[f]] += trace.of(f)[b];
        sum += trace.of(f)[b];
      }
      if (sum <= 0) continue;
      for (double& call : calls) call /= sum;
      intervals.push_back(std::move(calls));
    }
    const double total = rate();
    const GapSampler gaps(gap_kind_of(arrivals_.gaps), arrivals_.cv);
    const std::size_t n = intervals.size();
    // Every interval has the same number of requests, whatever the trace had.
    plan_.shares.assign(items_, 0.0);
    for (const std::vector<double>& calls : intervals) {
      for (std::size_t i = 0; i < items_; ++i) plan_.shares[i] += calls[i] / static_cast<double>(n);
    }
    double start_s = 0;
    for (std::size_t k = 0; k < n; ++k) {
      const std::size_t quota = (k + 1) * max_requests_ / n - k * max_requests_ / n;
      std::vector<ProcessOfItem> processes;
      for (std::size_t i = 0; i < items_; ++i) {
        const double share = intervals[k][i];
        if (share <= 0) continue;
        RngStream rng = arrivals_.correlated ? stream(0) : stream(k * items_ + i);
        processes.push_back({static_cast<std::uint32_t>(i),
                             std::make_unique<SteadyProcess>(rng, gaps, share * total, start_s)});
      }
      const auto part = merge_processes(&processes, quota, end_);
      plan_.arrivals.insert(plan_.arrivals.end(), part.begin(), part.end());
      if (part.size() < quota) break;  // duration_s ends the workload
      if (!part.empty()) start_s = to_seconds(part.back().at);
    }
  }

  void servegen() {
    const FunctionTrace trace = load(600);
    if (trace.gap_cv.empty()) {
      fail("trace", "process servegen needs a trace servegen-...; got '" + arrivals_.trace + "'");
    }
    const double scale = scale_of(trace);
    const auto item_of = mapping(trace);
    note_shares(trace, item_of);
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
          {item_of[f], std::make_unique<BinnedProcess>(
                           stream(f), GapSampler(), std::move(rates), trace.bin_s / arrivals_.speed,
                           [&trace, &sampler_of, f](std::size_t bin) -> const GapSampler& {
                             return sampler_of(trace.gap_cv[f * trace.bins + bin]);
                           })});
    }
    plan_.arrivals = merge_processes(&processes, max_requests_, end_);
  }

  const ArrivalInputs& inputs_;
  const WorkloadSettings& all_;
  const ArrivalSettings& arrivals_;
  std::size_t items_;
  std::size_t max_requests_ = kNoBound;
  TimeNs end_ = kNever;
  ArrivalPlan plan_;
};

}  // namespace

bool follows_trace_adapters(const ArrivalSettings& settings) {
  return settings.process == "trace-shares" || settings.process == "servegen" ||
         (settings.process == "trace-rate" && settings.per_adapter);
}

void fail_at(const ArrivalInputs& inputs, const std::string& key, const std::string& what) {
  const ConfigNode* node = inputs.section->find(key);
  throw SpecError(node != nullptr ? node->mark : inputs.section->mark, what);
}

void note_own_rate(double requests_per_s, ArrivalPlan* plan) {
  char text[32];
  const auto end =
      std::to_chars(text, text + sizeof text, requests_per_s, std::chars_format::general, 6).ptr;
  plan->notes.push_back("arrivals come at the trace's own rate times 'speed', " +
                        std::string(text, end) + " requests/s on average");
}

ArrivalPlan generate_arrivals(const ArrivalInputs& inputs) { return Generator(inputs).run(); }

}  // namespace servelab
