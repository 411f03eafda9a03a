// A replica on several devices against the CPU engine: the ranks' sums, adapters, merges and swaps,
// and LoRA that the devices take over from their hosts within a step.
#include <algorithm>

#include "engine/backend/cuda/collective.h"
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

// A replica whose ranks see an adapter come when the test says so: rank r before layer layers[r] of
// a step.
struct TakeOverRanks {
  using Rank = ComesBefore<cuda::CudaDevice>;

  TakeOverRanks(const ModelConfig& model, const ModelWeights& weights, const DevicePlan& plan)
      : ranks(static_cast<std::size_t>(plan.ranks)) {
    std::vector<std::shared_ptr<cuda::Collective>> seats(ranks.size());
    if (plan.ranks > 1) {
      auto made = cuda::make_collectives(plan.ranks, 0);
      std::move(made.begin(), made.end(), seats.begin());
    }
    std::vector<MakeRank> makers;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const cuda::RankSeat seat{shard(r), seats[r]};
      DevicePlan own = plan;
      own.device = static_cast<int>(r);
      makers.emplace_back([this, r, seat, own, &model, &weights] {
        auto made = std::make_unique<Rank>(model, weights, own, seat);
        ranks[r] = made.get();
        return made;
      });
    }
    replica = std::make_unique<TensorParallelDevice>(model, plan.limits, makers, nullptr);
  }

  Shard shard(std::size_t rank) const {
    return {static_cast<int>(rank), static_cast<int>(ranks.size())};
  }
  void comes_before(const std::vector<int>& layers, const LoraWeights& weights) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      auto part = shard_adapter(replica->model(), weights, shard(r));
      ranks[r]->before(layers[r],
                       [rank = ranks[r], part](AdapterId id) { load(rank, id, part, 64); });
    }
  }
  void evict(AdapterId adapter, const std::vector<int>& layers) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (layers[r] < replica->model().layers) ranks[r]->evict(adapter);
    }
  }

  std::vector<Rank*> ranks;
  std::unique_ptr<TensorParallelDevice> replica;
};

class RanksTakeOver : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const std::string reason = no_device();
    if (!reason.empty()) GTEST_SKIP() << reason;
    const int devices = find_accelerator("cuda")->devices();
    if (devices < GetParam()) {
      GTEST_SKIP() << "needs " << GetParam() << " devices; this machine has " << devices;
    }
    plan_.ranks = GetParam();
    plan_.lora.workers = 1;
    cpu_ = cpu_device(model_, *weights_, plan_.limits);
    load(cpu_.get(), nth(1), lora_[0]);
    load(cpu_.get(), nth(2), lora_[1]);
    expected_ = step(cpu_.get(), LoraSite::kDevice, {}).logits;
  }

  // Beside a decode and a prompt of the device's adapter 1 and rows of the base model, a prompt of
  // adapter 2 at `site`.
  DeviceResult step(Device* device, LoraSite site, const StepMode& mode) const {
    const auto ids = prompt(model_, 21, 5);
    run(device, {sequence(but_last(ids), 0, blocks(0, 6), nth(1))}, StepMode{});
    DeviceJob job;
    job.mode = mode;
    job.sequences = {sequence(ids, ids.size() - 1, blocks(0, 6), nth(1)),
                     sequence(ids, 0, blocks(6, 6), nth(2), site),
                     sequence(ids, 0, blocks(12, 6), nth(1)),
                     sequence(ids, 0, blocks(18, 6), kBaseModel)};
    return run_job(device, job);
  }
  // Adapter 1 is on all devices, adapter 2 on their hosts.
  std::unique_ptr<TakeOverRanks> open(const DevicePlan& plan) const {
    auto opened = std::make_unique<TakeOverRanks>(model_, *weights_, plan);
    load(opened->replica.get(), nth(1), lora_[0], 64);
    opened->replica->hold({nth(2), 64}, lora_[1]);
    return opened;
  }
  // The step, with adapter 2 coming to each rank before its layer of `layers`.
  void expect_switch(TakeOverRanks* on, const std::vector<int>& layers, StepMode mode) const {
    mode.take_over = TakeOver::kLoaded;
    on->comes_before(layers, *lora_[1]);
    const DeviceResult result = step(on->replica.get(), LoraSite::kHost, mode);
    EXPECT_EQ(result.host_layers, *std::max_element(layers.begin(), layers.end()))
        << ::testing::PrintToString(layers);
    EXPECT_LT(difference(result.logits, expected_), tolerance(DType::kF16))
        << ::testing::PrintToString(layers) << " " << name(mode.kernel) << " "
        << name(mode.host_copy);
    on->evict(nth(2), layers);
  }

  const ModelConfig model_ = wide_model(2, false);
  const std::unique_ptr<ModelWeights> weights_ = random_weights(model_, 7);
  const std::vector<std::shared_ptr<const LoraWeights>> lora_ = {
      random_adapter(model_, "a", 4, all_targets(), 4),
      random_adapter(model_, "b", 16, all_targets(), 16)};
  DevicePlan plan_ = small_plan(DType::kF16);
  std::unique_ptr<CpuDevice> cpu_;
  std::vector<float> expected_;
};

TEST_P(RanksTakeOver, AtEveryLayerUnderEveryKernelAndCopy) {
  const auto on = open(plan_);
  for (const LoraKernel kernel : kAllLoraKernels) {
    for (const HostCopy copy : {HostCopy::kFused, HostCopy::kSynced, HostCopy::kPageable}) {
      for (int layer = 0; layer <= model_.layers; ++layer) {
        StepMode mode;
        mode.kernel = kernel;
        mode.host_copy = copy;
        expect_switch(on.get(), std::vector<int>(on->ranks.size(), layer), mode);
      }
    }
  }
}

// Ranks that see the adapter come at different layers switch together, when the last of them has.
TEST_P(RanksTakeOver, TogetherWhereItComesToThemAtDifferentTimes) {
  const auto on = open(plan_);
  const std::size_t ranks = on->ranks.size();
  for (std::size_t last = 0; last < ranks; ++last) {
    for (int layer = 0; layer <= model_.layers; ++layer) {
      for (int earlier = 0; earlier <= layer; ++earlier) {
        std::vector<int> layers(ranks);
        for (std::size_t r = 0; r < ranks; ++r) {
          layers[r] = r == last ? layer : (earlier + static_cast<int>(r)) % (layer + 1);
        }
        expect_switch(on.get(), layers, StepMode{});
      }
    }
  }
}

TEST_P(RanksTakeOver, NeverWhereThePlanSaysSo) {
  const auto on = open(plan_);
  load(on->replica.get(), nth(2), lora_[1], 64);
  const DeviceResult result = step(on->replica.get(), LoraSite::kHost, StepMode{});
  EXPECT_EQ(result.host_layers, model_.layers);
  EXPECT_LT(difference(result.logits, expected_), tolerance(DType::kF16));
}

INSTANTIATE_TEST_SUITE_P(Ranks, RanksTakeOver, ::testing::Values(1, 2, 4));

}  // namespace
}  // namespace servelab
