// A replica on several devices against the CPU engine: the ranks' sums, adapters, merges and swaps.
#include "engine/backend/cuda/tp_executor.h"
#include "tests/cuda_engine/engine_testing.h"

namespace servelab {
namespace {

using namespace test;  // NOLINT: the tests' own words

ModelConfig wide_model(int kv_heads, bool tied) {
  ModelConfig model = small_model();
  model.heads = 4;
  model.kv_heads = kv_heads;
  model.ffn = 256;
  model.vocab = 104;
  model.tied_embeddings = tied;
  return model;
}

struct Shape {
  int ranks;
  int kv_heads;
  bool tied;
};

class TensorParallel : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    const std::string reason = no_device();
    if (!reason.empty()) GTEST_SKIP() << reason;
    const int devices = find_accelerator("cuda")->devices();
    if (devices < GetParam().ranks) {
      GTEST_SKIP() << "needs " << GetParam().ranks << " devices; this machine has " << devices;
    }
    model_ = wide_model(GetParam().kv_heads, GetParam().tied);
    weights_ = random_weights(model_, 7);
    DevicePlan plan = small_plan(DType::kF16);
    plan.ranks = GetParam().ranks;
    plan.host_threads = 2;
    plan.host_lora = true;
    CpuExecutorOptions options;
    static_cast<ExecutorLimits&>(options) = plan.limits;
    options.type = DType::kF32;
    options.isa = kernels::best_isa();
    cpu_ = std::make_unique<CpuExecutor>(model_, *weights_, options);
    cuda_ = std::make_unique<cuda::TpExecutor>(model_, *weights_, plan);
    for (const int rank : {4, 16, 64}) {
      const auto lora =
          random_adapter(model_, "a", rank, all_targets(), static_cast<std::uint64_t>(rank));
      on_cpu_.push_back(cpu_->pack_adapter(*lora, 0));
      if (rank != 16) cuda_->hold_on_host(lora, 64);
      on_cuda_.push_back(cuda_->pack_adapter(*lora, 64));
      on_cuda_.back()->wait();
      on_host_.push_back(cuda_->host_adapter(lora));
    }
  }

  std::vector<Part> parts(const std::vector<std::unique_ptr<DeviceAdapter>>& adapters) const {
    std::vector<Part> parts;
    for (int i = 0; i < 6; ++i) {
      Part part;
      part.ids = prompt(model_, 4 + 5 * i, 10 + static_cast<std::uint64_t>(i));
      part.table = blocks(i * 9, 9);
      part.adapter = i % 4 == 3 ? nullptr : adapters[static_cast<std::size_t>(i % 4)].get();
      parts.push_back(part);
    }
    return parts;
  }
  // Prefills all but the last token of each, then decodes all of them.
  std::vector<float> decode(Executor* executor, std::vector<Part> all, LoraKernel kernel) const {
    for (Part& part : all) {
      prefill(executor, {part.ids.begin(), part.ids.end() - 1}, 9, part.adapter, part.table);
      part.context = part.ids.size() - 1;
    }
    return run(executor, all, Exec::kUnmerged, kernel);
  }
  double allowed() const { return tolerance(DType::kF16); }

  ModelConfig model_;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<CpuExecutor> cpu_;
  std::unique_ptr<cuda::TpExecutor> cuda_;
  std::vector<std::unique_ptr<DeviceAdapter>> on_cpu_, on_cuda_, on_host_;
};

TEST_P(TensorParallel, MixedBatchesAndDecodesAreTheWholeModels) {
  const auto expected = run(cpu_.get(), parts(on_cpu_));
  EXPECT_LT(difference(run(cuda_.get(), parts(on_cuda_)), expected), allowed());
  for (const LoraKernel kernel : {LoraKernel::kMbgmv, LoraKernel::kSgmv}) {
    const auto decoded = decode(cpu_.get(), parts(on_cpu_), kernel);
    for (int round = 0; round < 3; ++round) {  // eagerly, recorded, as a graph
      EXPECT_LT(difference(decode(cuda_.get(), parts(on_cuda_), kernel), decoded), allowed());
    }
  }
}

// Every rank's host computes its rank's part, also beside adapters on the devices.
TEST_P(TensorParallel, AdaptersOnTheHostAreTheWholeModels) {
  const auto expected = run(cpu_.get(), parts(on_cpu_));
  const auto decoded = decode(cpu_.get(), parts(on_cpu_), LoraKernel::kSgmv);
  std::vector<Part> some = parts(on_cuda_);
  const std::vector<Part> hosted = parts(on_host_);
  for (const std::size_t i : {0u, 2u}) some[i].adapter = hosted[i].adapter;
  EXPECT_LT(difference(decode(cuda_.get(), hosted, LoraKernel::kSgmv), decoded), allowed());
  const auto mixed = run(cuda_.get(), some);
  EXPECT_LT(difference(mixed, expected), allowed());
  RunMode synced;
  synced.kernel = LoraKernel::kSgmv;
  synced.host_copy = HostCopy::kSynced;
  EXPECT_EQ(run(cuda_.get(), some, synced), mixed);
}

TEST_P(TensorParallel, MergedAgreesAndUnmergingRestoresEveryBit) {
  const auto ids = prompt(model_, 40, 3);
  const auto base = prefill(cuda_.get(), ids, 200, nullptr, blocks(0, 20));
  for (std::size_t i = 0; i < on_cuda_.size(); ++i) {
    const auto expected = prefill(cpu_.get(), ids, 200, on_cpu_[i].get(), blocks(0, 20));
    cuda_->merge(*on_cuda_[i]);
    const auto merged = prefill(cuda_.get(), ids, 200, nullptr, blocks(0, 20), Exec::kMerged);
    cuda_->unmerge();
    EXPECT_LT(difference(merged, expected), allowed());
    EXPECT_EQ(prefill(cuda_.get(), ids, 200, nullptr, blocks(0, 20)), base);
  }
}

TEST_P(TensorParallel, AContextCanBeSwappedOutAndInElsewhere) {
  const auto ids = prompt(model_, 31, 6);
  prefill(cuda_.get(), ids, 200, nullptr, blocks(0, 8));
  const auto stayed = run(cuda_.get(), {{ids, 30, blocks(0, 8), nullptr}});
  const HostMemory host = cuda_->host_memory(cuda_->context_bytes(31));
  cuda_->copy_out(blocks(0, 8), 31, host.get());
  prefill(cuda_.get(), prompt(model_, 30, 99), 200, nullptr, blocks(0, 8));
  cuda_->copy_in(blocks(40, 8), 31, host.get());
  EXPECT_EQ(run(cuda_.get(), {{ids, 30, blocks(40, 8), nullptr}}), stayed);
}

INSTANTIATE_TEST_SUITE_P(Shapes, TensorParallel,
                         ::testing::Values(Shape{2, 2, false}, Shape{2, 1, true},
                                           Shape{4, 2, false}, Shape{2, 4, true}),
                         [](const auto& info) {
                           return std::to_string(info.param.ranks) + "_ranks_" +
                                  std::to_string(info.param.kv_heads) + "_kv_heads" +
                                  (info.param.tied ? "_tied" : "");
                         });

}  // namespace
}  // namespace servelab
