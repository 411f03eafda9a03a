// Real runs of small workloads on any engine, what their requests get alone, and the promises that
// every engine keeps, as test bodies.
#ifndef SERVELAB_TESTS_SUPPORT_REAL_RUNS_H_
#define SERVELAB_TESTS_SUPPORT_REAL_RUNS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/backend/device/real_backend.h"
#include "engine/model/model_config.h"
#include "engine/model/weights.h"
#include "tests/support/test_cluster.h"

namespace servelab::test {

// Adapters with random weights on q, k, v and o, of the ranks that the workload says.
class RandomAdapters final : public AdapterSource {
 public:
  // `keeps`: they stay in host memory, as kept() says. Loading adapter `bad` fails; -1: none does.
  RandomAdapters(const ModelConfig& model, const Workload& workload, bool keeps = false,
                 int bad = -1);
  std::shared_ptr<const LoraWeights> load(AdapterId id) override;
  std::span<const std::shared_ptr<const LoraWeights>> kept() const override;

 private:
  bool keeps_;
  int bad_;
  std::vector<std::shared_ptr<const LoraWeights>> adapters_;
};

// Two layers of heads of hidden / heads, 64 tokens, contexts of 1,024.
ModelConfig tiny_model(int hidden, int heads, int kv_heads, int ffn);

// An engine under test, on a tiny model of its own choice.
class TestedEngine {
 public:
  virtual ~TestedEngine() = default;
  virtual const ModelConfig& model() const = 0;  // as long as the engine
  virtual std::unique_ptr<RealBackend> backend(RealTimeline* timeline, const CostModel* cost,
                                               const ModelWeights& weights,
                                               const Workload& workload, AdapterSource* adapters,
                                               PromptSource prompts) const = 0;
  // One that serves a request at a time, in the plainest way that it has. `weights` outlive it.
  virtual std::unique_ptr<Device> device(const ModelWeights& weights) const = 0;
};

struct RealRun {
  RunRecord record;
  std::vector<std::vector<std::int32_t>> outputs;  // by request
};

struct RealRunOptions {
  bool keeps_adapters = false;
  int bad_adapter = -1;
};
RealRun run_real(const TestedEngine& engine, const Workload& workload, RunOptions options,
                 const RealRunOptions& how = {});

// The same decisions from the run's stamps, in virtual time.
RunRecord replay(const Workload& workload, const RunOptions& options, const RunRecord& original);

// What each request generates when it is alone on the engine.
std::vector<std::vector<std::int32_t>> alone(const TestedEngine& engine, const Workload& workload,
                                             bool merged);

// 60 short requests to 6 adapters in a few hundredths of a second.
WorkloadShape short_requests();

// Every finished request has the tokens that it gets alone where that is a promise of the technique
// (one that merges may round otherwise), and a replay repeats every decision.
void expect_serves_and_replays(const TestedEngine& engine, const std::string& technique,
                               const RealRunOptions& how);
// With memory for three requests, swapped and recomputed ones have the tokens that they get alone.
void expect_preemption_loses_no_token(const TestedEngine& engine);
void expect_merged_tokens(const TestedEngine& engine, const RealRunOptions& how);

}  // namespace servelab::test

#endif  // SERVELAB_TESTS_SUPPORT_REAL_RUNS_H_
