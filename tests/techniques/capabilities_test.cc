// What CaraServe's Table 1 asks of a system, by a run each: what techniques and routing policies
// declare is what they do.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>

#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

constexpr Bytes kLarge = 64 * kMiB;  // 4 ms to load; a model of the test cluster takes 1 ms
constexpr TimeNs kWaits = 500'000;   // more than the host takes longer than the device

struct Declared {
  std::string technique, params;
};
void PrintTo(const Declared& of, std::ostream* out) { *out << of.technique << of.params; }

std::vector<Declared> all() {
  std::vector<Declared> found;
  for (const std::string& name : Registry<Technique>::instance().names()) {
    found.push_back({name, ""});
  }
  found.push_back({"vllm-uniform", "{resident_models: 0}"});
  found.push_back({"caraserve", "{cold: wait}"});
  return found;
}

std::unique_ptr<Technique> made(const Declared& of) {
  auto technique = Registry<Technique>::instance().make(of.technique);
  ParamFields fields;
  technique->fields(fields);
  fields.bind(of.params.empty() ? ConfigNode{} : parse_yaml(of.params, "test"), "test");
  return technique;
}

// Requests of 20 prompt tokens and 4 of output for these adapters, `gap` after one another.
Workload requests_to(const std::vector<std::uint32_t>& adapters, TimeNs gap, Bytes bytes = kLarge) {
  Workload workload;
  for (int i = 0; i < 2; ++i) {
    workload.adapters.push_back(Adapter{"a" + std::to_string(i), ModelId{}, 8, bytes});
  }
  for (const std::uint32_t adapter : adapters) {
    const auto at = static_cast<TimeNs>(workload.requests.size()) * gap;
    workload.requests.push_back({at, AdapterId{adapter}, ModelId{}, 20, 4, 4});
  }
  return workload;
}

RunRecord run(const Workload& workload, const Declared& of) {
  test::RunOptions options;
  options.technique = of.technique;
  options.params = of.params;
  options.engine = test::small_engine();
  const std::string route = made(of)->default_cluster_policy();
  // One that places adapters has them on the device before the first request.
  const auto& policies = Registry<ClusterPolicy>::instance();
  if (policies.make(route)->capabilities().places_adapters) options.route = "least-loaded";
  options.kv_blocks = 40'000;
  options.record.steps = true;
  const RunRecord record = test::run(workload, options);
  EXPECT_EQ(test::violation(workload, record), "");
  return record;
}

class CapabilitiesAreKept : public ::testing::TestWithParam<Declared> {};

// One batch of several adapters, and one copy of the weights.
TEST_P(CapabilitiesAreKept, GpuEfficient) {
  const RunRecord record = run(requests_to({0, 1, 0, 1, 0, 1}, 0), GetParam());
  const bool shared = std::any_of(
      record.step_log.begin(), record.step_log.end(),
      [](const StepRecord& step) { return step.adapters > 1 && step.exec == Exec::kUnmerged; });
  EXPECT_EQ(shared, made(GetParam())->capabilities().mixed_batches);
  if (shared) {
    EXPECT_EQ(record.replicas[0].weight_bytes, 16 * kMiB);
  }
}

// Settings of one parameter each: every choice, both truths, and small and large numbers.
std::vector<std::string> one_changed(const ParamFields& fields) {
  std::vector<std::string> all = {"{}"};
  for (const ParamField& field : fields.all()) {
    std::vector<std::string> values = field.choices();
    if (field.type_name() == "bool") values = {"true", "false"};
    if (field.type_name() == "int" || field.type_name() == "number") values = {"0", "1", "3", "50"};
    for (const std::string& value : values) all.push_back("{" + field.name() + ": " + value + "}");
  }
  return all;
}

// Whatever a technique's parameters are, one that declares no mixed batches runs requests of one
// adapter a step.
TEST(CapabilitiesAreKept, UnderEveryParameter) {
  const Workload workload = requests_to({0, 1, 1, 0, 0, 1, 0, 1}, 300'000);
  int runs = 0;
  for (const std::string& name : Registry<Technique>::instance().names()) {
    ParamFields fields;
    const auto plain = Registry<Technique>::instance().make(name);
    plain->fields(fields);
    for (const std::string& params : one_changed(fields)) {
      const Declared of{name, params};
      RunRecord record;
      try {
        made(of)->check();
        record = run(workload, of);
      } catch (const SpecError&) {  // impossible, or not on this backend
        continue;
      }
      ++runs;
      if (made(of)->capabilities().mixed_batches) continue;
      for (const StepRecord& step : record.step_log) {
        EXPECT_LE(step.adapters, 1) << name << " " << params;
      }
    }
  }
  EXPECT_GT(runs, 50);
}

// The first request of an adapter against one that finds it, or its model, there, and against one
// whose adapter takes no time to load.
TEST_P(CapabilitiesAreKept, ColdStartFree) {
  const RunRecord record = run(requests_to({0, 0}, from_seconds(1)), GetParam());
  const TimeNs cold = record.requests[0].first_token;
  const TimeNs warm = record.requests[1].first_token - from_seconds(1);
  const RunRecord small = run(requests_to({0}, 0, kKiB), GetParam());
  const TimeNs wait = cold - std::min(warm, small.requests[0].first_token);
  EXPECT_EQ(wait < kWaits, made(GetParam())->capabilities().cold_start_free) << wait << " ns";
}

INSTANTIATE_TEST_SUITE_P(Techniques, CapabilitiesAreKept, ::testing::ValuesIn(all()),
                         [](const auto& info) {
                           std::string name = info.param.technique;
                           if (!info.param.params.empty()) name += "_otherwise";
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// --- routing ---

std::vector<ReplicaId> routed(const std::string& route, const std::string& params) {
  test::WorkloadShape shape;
  shape.requests = 300;
  shape.adapters = 12;
  shape.rate_per_s = 1500;
  Workload workload = test::make_workload(shape, 2);
  for (std::size_t i = 0; i < workload.adapters.size(); ++i) workload.adapters[i].rank = 8 << i % 4;
  test::RunOptions options;
  options.technique = "slora";
  options.engine = test::small_engine();
  options.replicas = 4;
  options.route = route;
  options.route_params = params;
  std::vector<ReplicaId> to;
  for (const RequestRecord& r : test::run(workload, options).requests) to.push_back(r.replica);
  return to;
}

// A policy that is aware of an SLO has the parameter, and it changes where requests go.
TEST(CapabilitiesAreKept, SloAware) {
  const auto& policies = Registry<ClusterPolicy>::instance();
  int aware = 0;
  for (const std::string& name : policies.names()) {
    const auto policy = policies.make(name);
    ParamFields fields;
    policy->fields(fields);
    const std::vector<std::string> known = fields.names();
    const bool told = std::find(known.begin(), known.end(), "slo_ms") != known.end();
    EXPECT_EQ(told, policy->capabilities().slo_aware) << name;
    if (!told) continue;
    ++aware;
    const std::string lines = "decode_alpha_ms: 0.01, decode_beta_ms: 1, slo_ms: ";
    EXPECT_EQ(routed(name, "{" + lines + "900}"), routed(name, "{" + lines + "800}"))
        << name << ": neither is missed";
    EXPECT_NE(routed(name, "{" + lines + "900}"), routed(name, "{" + lines + "2}")) << name;
  }
  EXPECT_GT(aware, 0);
}

// HF-PEFT: a whole model per adapter on the devices of its replica, from the start.
TEST(CapabilitiesAreKept, WholeModelsStayWhereTheyAre) {
  const Workload workload = requests_to({0, 1, 1, 0}, 1000);
  test::RunOptions options;
  options.technique = "vllm-uniform";
  options.params = "{resident_models: 0}";
  options.engine = test::small_engine();
  for (const int replicas : {1, 2, 3}) {
    options.replicas = replicas;
    const RunRecord record = test::run(workload, options);
    EXPECT_EQ(test::violation(workload, record), "");
    Bytes weights = 0;
    for (const ReplicaTotals& totals : record.replicas) {
      EXPECT_EQ(totals.loads, 0);
      weights += totals.weight_bytes;
    }
    EXPECT_EQ(weights, 2 * 16 * kMiB) << "one copy of each model, on " << replicas;
    EXPECT_EQ(record.replicas.size(), static_cast<std::size_t>(std::min(replicas, 2)));
    EXPECT_EQ(record.requests[0].replica, record.requests[3].replica);
    EXPECT_EQ(record.requests[0].replica == record.requests[1].replica, replicas == 1);
  }
}

}  // namespace
}  // namespace servelab
