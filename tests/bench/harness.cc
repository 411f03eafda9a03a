#include "tests/bench/harness.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <utility>

#include "engine/calibrate/nnls.h"
#include "engine/record/summary.h"
#include "engine/spec/spec.h"

namespace servelab {
namespace {

constexpr const char* kRepeatedRoute = "bench-repeated";

class RepeatedPolicy final : public ReplicaPolicy {
 public:
  RepeatedPolicy(std::unique_ptr<ReplicaPolicy> policy, int times)
      : policy_(std::move(policy)), times_(times) {}
  bool plan(const ReplicaView& view, StepPlan* out) override {
    bool starts = false;
    for (int i = 0; i < times_; ++i) {
      out->clear();
      starts = policy_->plan(view, out);
    }
    return starts;
  }
  void on_step_done(const ReplicaView& view, const StepReport& report) override {
    policy_->on_step_done(view, report);
  }

 private:
  std::unique_ptr<ReplicaPolicy> policy_;
  int times_;
};

class RepeatedTechnique final : public Technique {
 public:
  RepeatedTechnique(std::shared_ptr<const Technique> technique, int times)
      : technique_(std::move(technique)), times_(times) {}
  std::string summary() const override { return technique_->summary(); }
  std::string paper() const override { return technique_->paper(); }
  Capabilities capabilities() const override { return technique_->capabilities(); }
  std::unique_ptr<ReplicaPolicy> replica_policy() const override {
    return std::make_unique<RepeatedPolicy>(technique_->replica_policy(), times_);
  }

 private:
  std::shared_ptr<const Technique> technique_;
  int times_;
};

}  // namespace

class RepeatedRoute final : public ClusterPolicy {
 public:
  void fields(ParamFields& f) override {
    f.add("policy", &policy_, "cluster policy");
    f.add("params", &params_, "YAML map of its parameters");
    f.add("times", &times_, "decisions per request");
  }
  ReplicaId route(const RoutedRequest& request, const ClusterView& view) override {
    if (inner_ == nullptr) {
      inner_ = Registry<ClusterPolicy>::instance().make(policy_);
      ParamFields fields;
      inner_->fields(fields);
      fields.bind(parse_yaml(params_, "benchmark"), policy_);
      inner_->begin(view);
    }
    ReplicaId to{};
    for (int i = 0; i < times_; ++i) to = inner_->route(request, view);
    return to;
  }

 private:
  std::string policy_ = "round-robin";
  std::string params_ = "{}";
  int times_ = 1;
  std::unique_ptr<ClusterPolicy> inner_;
};

double seconds_of(const std::function<void()>& work) {
  const auto began = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

double cpu_seconds_of(const std::function<void()>& work) {
  const std::clock_t began = std::clock();
  work();
  return static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC;
}

PointSettings bench_point(const std::string& name) {
  const std::string source = SERVELAB_SOURCE_DIR;
  const Spec spec =
      load_spec(source + "/tests/bench/specs/" + name + ".yaml", source + "/experiments");
  return resolve_point(spec, spec.positions.front(), spec.techniques.front(), 0);
}

Workload draw_requests(const PointSettings& settings, int requests) {
  PointSettings own = settings;
  if (requests > 0) own.workload.set("requests", ConfigNode::of(std::to_string(requests), false));
  return build_point_workload(own, "").workload;
}

void plan_repeatedly(int times, PointSettings* settings) {
  settings->technique = std::make_shared<RepeatedTechnique>(settings->technique, times);
}

void route_repeatedly(int times, const std::string& policy, const std::string& params,
                      PointSettings* settings) {
  settings->route = kRepeatedRoute;
  settings->route_params = ConfigNode::map();
  settings->route_params.set("policy", ConfigNode::of(policy));
  settings->route_params.set("params", ConfigNode::of(params));
  settings->route_params.set("times", ConfigNode::of(std::to_string(times), false));
}

Workload even_workload(const RunShape& shape) {
  constexpr int kAdapters = 64;
  constexpr double kStepS = 0.01;  // runtime.null_time_s, as it is by default
  Workload workload;
  for (int i = 0; i < kAdapters; ++i) {
    workload.adapters.push_back(Adapter{"a" + std::to_string(i), ModelId{}, 8, 8 * kMiB});
  }
  const double gap_s = kStepS * shape.output / shape.batch;
  for (int i = 0; i < shape.requests; ++i) {
    workload.requests.push_back({from_seconds(i * gap_s), AdapterId(i % kAdapters), ModelId{}, 16,
                                 shape.output, shape.output});
  }
  return workload;
}

namespace {

std::vector<RunShape> shapes() {
  constexpr int kSlices = 400'000;
  std::vector<RunShape> all;
  for (const int batch : {1, 2, 4, 16, 32, 64, 256}) {
    for (const int output : {1, 4, 32, 128}) {
      all.push_back({std::clamp(kSlices / output, 8 * batch, kSlices / 4), batch, output});
    }
  }
  return all;
}

struct Counts {
  double seconds = 0;
  double requests = 0, steps = 0, slices = 0;
};

Counts time_run(const PointSettings& settings, const Workload& workload) {
  Counts counts;
  PointResult result;
  counts.seconds = cpu_seconds_of([&] { result = run_point(settings, workload); });
  counts.seconds -= cpu_seconds_of([&] { summarize(workload, result.record); });
  counts.requests = static_cast<double>(workload.requests.size());
  counts.steps = static_cast<double>(result.record.steps);
  // Prompts are shorter than a step's budget: one slice per output token.
  for (const RequestRecord& r : result.record.requests) counts.slices += r.generated;
  return counts;
}

RunCost fitted(const std::vector<Counts>& runs) {
  LeastSquares fit(4);
  for (const Counts& c : runs) {  // 1: what a run takes whatever its length
    fit.add({1, c.requests, c.steps, c.slices}, c.seconds, 1 / c.seconds);
  }
  const std::vector<double> cost = fit.solve();
  std::vector<double> errors;
  for (const Counts& c : runs) {
    const double sum = cost[0] + cost[1] * c.requests + cost[2] * c.steps + cost[3] * c.slices;
    errors.push_back(std::abs(sum - c.seconds) / c.seconds);
  }
  const auto middle = errors.begin() + static_cast<std::ptrdiff_t>(errors.size() / 2);
  std::nth_element(errors.begin(), middle, errors.end());
  return {cost[1] * 1e9, cost[2] * 1e9, cost[3] * 1e9, *middle};
}

}  // namespace

std::vector<RunCost> run_costs(const std::vector<PointSettings>& settings, int rounds) {
  std::vector<std::vector<Counts>> least(settings.size());
  for (const RunShape& shape : shapes()) {
    const Workload workload = even_workload(shape);
    for (std::size_t i = 0; i < settings.size(); ++i) least[i].emplace_back();
    for (int round = 0; round < rounds; ++round) {
      for (std::size_t i = 0; i < settings.size(); ++i) {
        PointSettings own = settings[i];
        own.engine.limits.max_batch = shape.batch;
        const Counts counts = time_run(own, workload);
        if (round == 0 || counts.seconds < least[i].back().seconds) least[i].back() = counts;
      }
    }
  }
  std::vector<RunCost> costs;
  for (const std::vector<Counts>& runs : least) costs.push_back(fitted(runs));
  return costs;
}

}  // namespace servelab

SERVELAB_CLUSTER_POLICY("bench-repeated", RepeatedRoute)
