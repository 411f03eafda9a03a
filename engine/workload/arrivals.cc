#include "engine/workload/arrivals.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "engine/workload/arrival_process.h"

namespace servelab {
namespace {

constexpr char kStream[] = "arrivals";
constexpr double kMostRequests = 2e8;

std::unique_ptr<ArrivalKind> kind_of(const ArrivalSettings& settings) {
  return Registry<ArrivalKind>::instance().make(settings.process);
}
}  // namespace

GapKind gap_kind_of(const std::string& name) {
  if (name == "gamma") return GapKind::kGamma;
  if (name == "lognormal") return GapKind::kLogNormal;
  if (name == "weibull") return GapKind::kWeibull;
  if (name == "even") return GapKind::kEven;
  return GapKind::kExponential;
}

ArrivalGenerator::ArrivalGenerator(const ArrivalInputs& inputs) : inputs_(inputs) {
  const WorkloadBounds& bounds = inputs.settings->bounds;
  if (bounds.requests > 0) max_requests_ = static_cast<std::size_t>(bounds.requests);
  if (bounds.requests_per_rate > 0) max_requests_ = requests_of_rate();
  if (bounds.duration_s > 0) end_ = from_seconds(bounds.duration_s);
}

RngStream ArrivalGenerator::stream(std::uint64_t item) const {
  return RngStream(inputs_.seed, kStream, item);
}

double ArrivalGenerator::rate() {
  plan_.rate_per_s = settings().rate_per_s > 0 ? settings().rate_per_s : inputs_.weight_sum;
  if (plan_.rate_per_s > 0) return plan_.rate_per_s;
  if (inputs_.section->find("rate") != nullptr) {
    fail("rate", "'rate' must be above 0 unless popularity.weights or a trace gives it");
  }
  return plan_.rate_per_s = 1;
}

std::size_t ArrivalGenerator::requests_of_rate() const {
  const WorkloadBounds& bounds = inputs_.settings->bounds;
  if (bounds.requests > 0) fail("rate", "set 'requests' or 'requests_per_rate', not both");
  if (!kind_of(settings())->has_rate() || settings().rate_per_s <= 0) {
    fail("rate", "'requests_per_rate' needs an arrivals.rate above 0");
  }
  const double requests = bounds.requests_per_rate * settings().rate_per_s;
  if (requests > kMostRequests) {
    fail("rate", "'requests_per_rate' times 'rate' makes more than 200 million requests");
  }
  return static_cast<std::size_t>(std::max(1.0, std::round(requests)));
}

void ArrivalGenerator::merge(std::vector<ProcessOfItem> processes) {
  const std::size_t most =
      inputs_.first_only ? std::min<std::size_t>(1, max_requests_) : max_requests_;
  plan_.arrivals = merge_processes(&processes, most, end_);
}

void ArrivalGenerator::per_item(
    const std::function<std::unique_ptr<ArrivalProcess>(std::uint32_t item, double rate)>& make) {
  std::vector<ProcessOfItem> processes;
  const double total = rate();
  for (std::size_t i = 0; i < items(); ++i) {
    const double share = (*inputs_.shares)[i];
    if (share <= 0) continue;
    const auto item = static_cast<std::uint32_t>(i);
    processes.push_back({item, make(item, share * total)});
  }
  merge(std::move(processes));
}

void ArrivalGenerator::note_shares(const FunctionTrace& trace,
                                   const std::vector<std::uint32_t>& item_of) {
  plan_.shares.assign(items(), 0.0);
  double sum = 0;
  for (std::size_t f = 0; f < trace.functions; ++f) {
    plan_.shares[item_of[f]] += trace.total(f);
    sum += trace.total(f);
  }
  for (double& share : plan_.shares) share = sum > 0 ? share / sum : 0;
}

FunctionTrace ArrivalGenerator::load(double bin_s) {
  if (settings().trace.empty()) {
    fail("process", "process " + settings().process + " needs 'trace'");
  }
  FunctionTraceRequest request;
  request.name = settings().trace;
  request.role = "arrivals";
  request.data_dir = inputs_.data_dir;
  request.embedded_allowed = inputs_.settings->bounds.fallback == "embedded";
  request.bin_s = bin_s;
  request.start_s = settings().start_s;
  request.window_s = settings().window_s;
  request.functions = static_cast<std::size_t>(inputs_.settings->popularity.functions);
  const ConfigNode* node = inputs_.section->find("trace");
  request.mark = node != nullptr ? node->mark : inputs_.section->mark;
  FunctionTrace trace = load_function_trace(request);
  if (trace.bin_s == 0) {
    fail("trace", "trace '" + settings().trace +
                      "' gives popularity only, no times; use it as popularity.trace");
  }
  plan_.sources.push_back(trace.source);
  return trace;
}

std::vector<std::uint32_t> ArrivalGenerator::item_of_function(const FunctionTrace& trace) const {
  const PopularitySettings& popularity = inputs_.settings->popularity;
  return map_functions(trace, items(), static_cast<std::size_t>(popularity.skewness),
                       popularity.sort);
}

double ArrivalGenerator::scale_of(const FunctionTrace& trace) {
  const double bin_s = trace.bin_s / settings().speed;
  double sum = 0;
  for (const float count : trace.counts) sum += count;
  if (settings().rate_per_s <= 0) {
    note_own_rate(sum / (bin_s * static_cast<double>(trace.bins)), &plan_);
    return 1 / bin_s;
  }
  return settings().rate_per_s * static_cast<double>(trace.bins) / sum;
}

bool follows_trace_adapters(const ArrivalSettings& settings) {
  return kind_of(settings)->follows_trace_adapters(settings);
}

std::vector<std::string> arrival_process_names() {
  return Registry<ArrivalKind>::instance().names();
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

ArrivalPlan generate_arrivals(const ArrivalInputs& inputs) {
  const auto kind = kind_of(inputs.settings->arrivals);
  ArrivalGenerator generator(inputs);
  const std::size_t most = generator.max_requests();
  const bool is_bounded = most != ArrivalGenerator::kNoBound || generator.end() != kNever;
  if (!is_bounded && !kind->has_own_end()) {
    generator.fail("process", "set 'requests' or 'duration_s'");
  }
  kind->generate(&generator);
  ArrivalPlan plan = std::move(generator.plan());
  const bool ran_out = is_bounded && generator.end() == kNever && plan.arrivals.size() < most;
  if (ran_out && !kind->has_own_end() && !inputs.first_only) {
    generator.fail("rate", "only " + std::to_string(plan.arrivals.size()) + " of " +
                               std::to_string(most) +
                               " requests arrive within 285 years, the end of time here; raise "
                               "'rate'");
  }
  return plan;
}
}  // namespace servelab
