// Runs a technique on a small cluster with a simple linear cost model, for tests and benchmarks of
// the serving core that need no model, hardware or trace.
#ifndef SERVELAB_TESTS_SUPPORT_TEST_CLUSTER_H_
#define SERVELAB_TESTS_SUPPORT_TEST_CLUSTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/core/config_node.h"
#include "engine/serve/cluster.h"

namespace servelab::test {

// Linear in every aggregate; 1 us of fixed cost. Numbers are round, not any machine's.
class LinearCost final : public CostModel {
 public:
  explicit LinearCost(TimeNs key_ns = 10) : key_ns_(key_ns) {}
  StepCost step(const BatchShape& batch, Exec exec, LoraKernel kernel) const override;
  TimeNs merge(int rank) const override { return 10'000 + 100 * rank; }
  TimeNs unmerge(int rank) const override { return 10'000 + 100 * rank; }
  TimeNs host_to_device(Bytes bytes) const override { return 5'000 + bytes / 16; }
  TimeNs device_to_host(Bytes bytes) const override { return 5'000 + bytes / 16; }
  const char* no_host_lora() const override { return nullptr; }
  HostLoraCost host_lora(const BatchShape& batch, HostCopy copy) const override;

 private:
  TimeNs key_ns_;  // of attention, per key
};

struct WorkloadShape {
  int requests = 200;
  int adapters = 8;
  int ranks = 8;             // of every adapter
  double rate_per_s = 2000;  // Poisson
  int max_prompt = 200;      // uniform from 1
  int max_output = 60;       // uniform from 1
  double base_share = 0.1;   // requests without an adapter
  bool burst = false;        // everyone at t = 0
};
Workload make_workload(const WorkloadShape& shape, std::uint64_t seed);

struct RunOptions {
  std::string technique = "slora";
  std::string params;        // YAML map of the technique's parameters
  std::string route;         // empty: the technique's own
  std::string route_params;  // YAML map of the cluster policy's parameters
  // In place of `route`, and of the technique's replica policies, where set.
  std::function<std::unique_ptr<ClusterPolicy>()> cluster_policy;
  std::function<std::unique_ptr<ReplicaPolicy>()> replica_policy;
  int replicas = 1;
  int repository_copies = 0;  // of techniques that serve adapters as such; 0: all everywhere
  EngineSettings engine;
  std::int64_t kv_blocks = 400;  // of 16 tokens, besides the adapter slots
  int max_context_tokens = 4096;
  TimeNs max_arrival_lag = from_seconds(10);
  TimeNs migration_delay = from_seconds(0.001);
  TimeNs stop_at = kNever;
  std::int64_t max_waiting = 0;
  WhenFull when_full = WhenFull::kWait;
  bool step_by_step = false;
  TimeNs key_ns = 10;  // LinearCost's
  RecorderOptions record;
};
EngineSettings small_engine();  // 16 requests, 512 tokens, all adapters in slots

RunRecord run(const Workload& workload, const RunOptions& options);
// The same on a backend and timeline of the caller's.
RunRecord run_on(const Workload& workload, const RunOptions& options, Timeline* timeline,
                 Backend* backend);

// Attaches `replicas` replicas of one model on a device each, for tests of a backend by itself.
void attach_replicas(Backend* backend, int replicas);

// What must hold for any finished run: stamps in order, every request ended once with its length.
// Returns the first violation, or an empty string.
std::string violation(const Workload& workload, const RunRecord& record);

// What two runs that should be the same recorded otherwise, by name; empty where nothing.
std::string difference(const RunRecord& a, const RunRecord& b);

}  // namespace servelab::test

#endif  // SERVELAB_TESTS_SUPPORT_TEST_CLUSTER_H_
