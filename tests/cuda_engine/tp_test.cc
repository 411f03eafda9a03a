// A replica on several devices against the CPU engine: the ranks' sums, adapters, merges and swaps.
#include "engine/backend/device/tensor_parallel.h"
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
    plan.lora.workers = 2;
    plan.host_lora = true;
    cpu_ = cpu_device(model_, *weights_, plan.limits);
    cuda_ = find_accelerator("cuda")->make(model_, *weights_, plan);
    for (const int rank : {4, 16, 64}) {
      const auto lora =
          random_adapter(model_, "a", rank, all_targets(), static_cast<std::uint64_t>(rank));
      const AdapterId id = nth(adapters_++);
      load(cpu_.get(), id, lora);
      if (rank != 16) cuda_->hold({id, 64}, lora);
      load(cuda_.get(), id, lora, 64);
      if (rank == 16) cuda_->hold({id, 64}, lora);
    }
  }

  // A batch of six, with adapters on `site`.
  std::vector<Sequence> batch(LoraSite site = LoraSite::kDevice) const {
    std::vector<Sequence> sequences;
    for (int i = 0; i < 6; ++i) {
      sequences.push_back(sequence(ids(i), 0, blocks(i * 9, 9), adapter(i), site));
    }
    return sequences;
  }
  std::vector<std::int32_t> ids(int i) const {
    return prompt(model_, 4 + 5 * i, 10 + static_cast<std::uint64_t>(i));
  }
  static AdapterId adapter(int i) {
    return i % 4 == 3 ? kBaseModel : nth(static_cast<std::size_t>(i % 4));
  }
  // Prefills all but the last token of each, then decodes all of them.
  std::vector<float> decode(Device* device, LoraKernel kernel,
                            LoraSite site = LoraSite::kDevice) const {
    std::vector<Sequence> last;
    for (int i = 0; i < 6; ++i) {
      prefill(device, but_last(ids(i)), 9, blocks(i * 9, 9), adapter(i), site);
      last.push_back(sequence(ids(i), ids(i).size() - 1, blocks(i * 9, 9), adapter(i), site));
    }
    return run(device, last, Exec::kUnmerged, kernel);
  }
  double allowed() const { return tolerance(DType::kF16); }

  ModelConfig model_;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<CpuDevice> cpu_;
  std::unique_ptr<Device> cuda_;
  std::size_t adapters_ = 0;
};

TEST_P(TensorParallel, MixedBatchesAndDecodesAreTheWholeModels) {
  const auto expected = run(cpu_.get(), batch());
  EXPECT_LT(difference(run(cuda_.get(), batch()), expected), allowed());
  for (const LoraKernel kernel : {LoraKernel::kMbgmv, LoraKernel::kSgmv}) {
    const auto decoded = decode(cpu_.get(), kernel);
    for (int round = 0; round < 3; ++round) {  // eagerly, recorded, as a graph
      EXPECT_LT(difference(decode(cuda_.get(), kernel), decoded), allowed());
    }
  }
}

// Every rank's host computes its rank's part, also beside adapters on the devices.
TEST_P(TensorParallel, AdaptersOnTheHostAreTheWholeModels) {
  const auto expected = run(cpu_.get(), batch());
  const auto decoded = decode(cpu_.get(), LoraKernel::kSgmv);
  EXPECT_LT(difference(decode(cuda_.get(), LoraKernel::kSgmv, LoraSite::kHost), decoded),
            allowed());
  std::vector<Sequence> some = batch();
  for (const std::size_t i : {0u, 2u}) some[i].lora = LoraSite::kHost;
  const auto mixed = run(cuda_.get(), some);
  EXPECT_LT(difference(mixed, expected), allowed());
  StepMode synced;
  synced.kernel = LoraKernel::kSgmv;
  synced.host_copy = HostCopy::kSynced;
  EXPECT_EQ(run(cuda_.get(), some, synced), mixed);
}

TEST_P(TensorParallel, MergedAgreesWithUnmergedAndUnmergingRestoresEveryBit) {
  const auto ids = prompt(model_, 40, 3);
  const auto base = prefill(cuda_.get(), ids, 200, blocks(0, 20));
  for (std::size_t i = 0; i < adapters_; ++i) {
    const auto expected = prefill(cpu_.get(), ids, 200, blocks(0, 20), nth(i));
    merge(cuda_.get(), nth(i));
    const auto merged = prefill_merged(cuda_.get(), ids, blocks(0, 20));
    unmerge(cuda_.get());
    EXPECT_LT(difference(merged, expected), allowed());
    EXPECT_EQ(prefill(cuda_.get(), ids, 200, blocks(0, 20)), base);
  }
}

TEST_P(TensorParallel, AContextCanBeSwappedOutAndInElsewhere) {
  const auto ids = prompt(model_, 31, 6);
  prefill(cuda_.get(), ids, 200, blocks(0, 8));
  const auto stayed = run(cuda_.get(), {sequence(ids, 30, blocks(0, 8))});
  move(cuda_.get(), {out_of(blocks(0, 8), 31)});
  prefill(cuda_.get(), prompt(model_, 30, 99), 200, blocks(0, 8));
  move(cuda_.get(), {into(blocks(40, 8), 31)});
  EXPECT_EQ(run(cuda_.get(), {sequence(ids, 30, blocks(40, 8))}), stayed);
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
