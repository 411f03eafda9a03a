// Real runs on the CUDA engine, on a device on the host whose streams are lazy: every technique
// serves every request with the tokens that it would get alone, through loads, swaps and graphs.
#include <gtest/gtest.h>

#include "engine/core/registry.h"
#include "tests/cuda_engine/engine_testing.h"
#include "tests/support/real_runs.h"

namespace servelab {
namespace {

constexpr int kWidest = 16;

DevicePlan tiny_plan() {
  DevicePlan plan;
  plan.targets = {LinearLayer::kQ, LinearLayer::kK, LinearLayer::kV, LinearLayer::kO};
  plan.widest_rank = kWidest;
  plan.merges = true;
  plan.host_lora = true;
  plan.lora.workers = 2;
  // The host rounds its LoRA otherwise than the device, and requests change sides: in bf16 that
  // decides some of this model's near ties between tokens.
  plan.type = kernels::DType::kF16;
  plan.limits.kv_blocks = 64;
  return plan;
}

class CudaEngine final : public test::TestedEngine {
 public:
  const ModelConfig& model() const override { return model_; }
  std::unique_ptr<RealBackend> backend(RealTimeline* timeline, const CostModel* cost,
                                       const ModelWeights& weights, const Workload& workload,
                                       AdapterSource* adapters,
                                       PromptSource prompts) const override {
    const auto make = [this, &weights, &workload](ReplicaId, const ReplicaLayout& layout) {
      DevicePlan plan = tiny_plan();
      plan.limits = {layout.kv_blocks, layout.block_tokens, layout.max_batch,
                     layout.max_batch_tokens};
      plan.folded = layout.model_slots > 0;
      plan.adapters = plan.folded ? layout.model_slots : static_cast<int>(layout.adapters);
      plan.padded = layout.padded_adapters;
      for (const Adapter& adapter : workload.adapters) plan.adapter_bytes += adapter.bytes;
      return find_accelerator("cuda")->make(model_, weights, plan);
    };
    return make_real_backend(timeline, cost, workload, adapters, std::move(prompts), make, {});
  }
  std::unique_ptr<Device> device(const ModelWeights& weights) const override {
    DevicePlan plan = tiny_plan();
    plan.adapters = 1;
    plan.graphs = false;
    return std::make_unique<cuda::CudaDevice>(model_, weights, plan);
  }

 private:
  const ModelConfig model_ = test::tiny_model(64, 1, 1, 64);
};

class CudaBackendRun : public ::testing::TestWithParam<std::string> {};

TEST_P(CudaBackendRun, ServesEveryRequestAndReplaysIdentically) {
  test::expect_serves_and_replays(CudaEngine(), GetParam(), {.keeps_adapters = true});
}

INSTANTIATE_TEST_SUITE_P(All, CudaBackendRun,
                         ::testing::ValuesIn(Registry<Technique>::instance().names()),
                         [](const auto& info) {
                           std::string text = info.param;
                           std::replace(text.begin(), text.end(), '-', '_');
                           return text;
                         });

TEST(CudaBackend, PreemptionLosesNoToken) { test::expect_preemption_loses_no_token(CudaEngine()); }

TEST(CudaBackend, MergedOnlyGivesTheMergedModelsTokens) {
  test::expect_merged_tokens(CudaEngine(), {.keeps_adapters = true});
}

}  // namespace
}  // namespace servelab
