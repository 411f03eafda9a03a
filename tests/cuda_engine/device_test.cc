// The CUDA engine's forward pass against the CPU engine's in f32, and what must hold within it:
// batches, chunks, merges, swaps, padding and graphs.
#include <gmock/gmock.h>

#include "engine/cli/generate.h"
#include "tests/cuda_engine/engine_testing.h"

namespace servelab {
namespace {

using namespace test;  // NOLINT: the tests' own words

class CudaEngine : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    const std::string reason = no_device();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  DevicePlan plan() const { return small_plan(GetParam()); }
  double allowed() const { return tolerance(GetParam()); }
};

// Seven sequences, decodes and prefills, the base model and four adapters.
std::vector<float> run_mixed(Device* device, LoraKernel kernel) {
  std::vector<Sequence> sequences;
  for (int i = 0; i < 7; ++i) {
    const auto ids = prompt(device->model(), 3 + 5 * i, 10 + static_cast<std::uint64_t>(i));
    const AdapterId adapter = i == 1 || i == 4 ? kBaseModel : nth(static_cast<std::size_t>(i % 4));
    const std::size_t context = i % 2 == 0 ? 0 : ids.size() - 1;
    if (context > 0) prefill(device, but_last(ids), 200, blocks(i * 9, 9), adapter);
    sequences.push_back(sequence(ids, context, blocks(i * 9, 9), adapter));
  }
  return run(device, sequences, Exec::kUnmerged, kernel);
}

TEST_P(CudaEngine, AMixedBatchUnderEveryKernel) {
  for (const bool padded : {true, false}) {
    DevicePlan device = plan();
    device.padded = padded;
    device.adapter_bytes = 1 << 20;
    const Engines engines(device, padded ? 64 : 0);
    const auto expected = run_mixed(engines.cpu.get(), LoraKernel::kSgmv);
    for (const LoraKernel kernel : kAllLoraKernels) {
      if (kernel == LoraKernel::kBgmv && !padded) continue;
      const auto got = run_mixed(engines.cuda.get(), kernel);
      EXPECT_LT(difference(got, expected), allowed()) << name(kernel) << " padded " << padded;
    }
  }
}

TEST_P(CudaEngine, AdaptersChangeTheOutputByMoreThanTheTolerance) {
  const Engines engines(plan());
  const auto ids = prompt(engines.model, 20, 1);
  const auto base = prefill(engines.cuda.get(), ids, 64, blocks(0, 8));
  for (std::size_t i = 0; i < engines.lora.size(); ++i) {
    const auto adapted = prefill(engines.cuda.get(), ids, 64, blocks(0, 8), nth(i));
    EXPECT_GT(difference(adapted, base), 3 * allowed());
  }
}

TEST_P(CudaEngine, ChunkedPrefillIsTheWhole) {
  const Engines engines(plan());
  const auto ids = prompt(engines.model, 77, 2);
  const auto expected = prefill(engines.cpu.get(), ids, 200, blocks(0, 20), nth(2));
  for (const std::size_t chunk : {200u, 1u, 7u, 64u, 76u}) {
    const auto got = prefill(engines.cuda.get(), ids, chunk, blocks(20, 20), nth(2));
    EXPECT_LT(difference(got, expected), allowed()) << "chunk " << chunk;
  }
}

TEST_P(CudaEngine, MergedAgreesWithUnmergedAndUnmergingRestoresEveryBit) {
  const Engines engines(plan());
  Device* const cuda = engines.cuda.get();
  const auto ids = prompt(engines.model, 40, 3);
  const auto base = prefill(cuda, ids, 200, blocks(0, 20));
  for (std::size_t i = 0; i < engines.lora.size(); ++i) {
    const auto expected = prefill(engines.cpu.get(), ids, 200, blocks(0, 20), nth(i));
    merge(cuda, nth(i));
    const auto merged = prefill_merged(cuda, ids, blocks(0, 20));
    unmerge(cuda);
    EXPECT_LT(difference(merged, expected), allowed()) << "adapter " << i;
    EXPECT_EQ(prefill(cuda, ids, 200, blocks(0, 20)), base);
  }
}

// An adapter of some layers and targets only, after one that touches all: what it leaves alone is
// the base's again.
TEST_P(CudaEngine, MergingANarrowAdapterAfterAWideOne) {
  DevicePlan device = plan();
  device.adapters = 5;
  const Engines engines(device);
  const auto ids = prompt(engines.model, 30, 4);
  const auto narrow = random_adapter(engines.model, "narrow", 8, {"k", "up"}, 99);
  load(engines.cpu.get(), nth(9), narrow);
  engines.cuda->load({nth(9), 64}, narrow);
  merge(engines.cuda.get(), nth(3));
  merge(engines.cuda.get(), nth(9));
  const auto merged = prefill_merged(engines.cuda.get(), ids, blocks(0, 20));
  const auto expected = prefill(engines.cpu.get(), ids, 200, blocks(0, 20), nth(9));
  EXPECT_LT(difference(merged, expected), allowed());
}

TEST_P(CudaEngine, AFoldedCopyIsTheAdaptersModel) {
  DevicePlan device = plan();
  device.folded = true;
  device.adapters = 2;
  const Engines engines(device);
  const auto ids = prompt(engines.model, 30, 5);
  for (int round = 0; round < 2; ++round) {  // the places are used again
    for (const std::size_t i : {1u, 3u}) {
      engines.cuda->load({nth(i), 0, true}, engines.lora[i]);
      const auto expected = prefill(engines.cpu.get(), ids, 200, blocks(0, 20), nth(i));
      DeviceJob job;
      job.folded = nth(i);
      job.sequences = {sequence({ids.begin(), ids.begin() + 7}, 0, blocks(0, 20))};
      run_job(engines.cuda.get(), job);
      job.sequences = {sequence(ids, 7, blocks(0, 20))};
      const auto got = run_job(engines.cuda.get(), job).logits;
      EXPECT_LT(difference(got, expected), allowed()) << "adapter " << i;
      engines.cuda->evict(nth(i));
    }
  }
}

TEST_P(CudaEngine, AContextCanBeSwappedOutAndInElsewhere) {
  const Engines engines(plan());
  Device* const cuda = engines.cuda.get();
  const auto first = prompt(engines.model, 31, 6);
  const auto second = prompt(engines.model, 18, 7);
  const auto decode = [&](const std::vector<std::int32_t>& ids,
                          const std::vector<BlockIndex>& table,
                          const std::vector<KvMove>& moves = {}) {
    DeviceJob job;
    job.moves = moves;
    job.sequences = {sequence(ids, ids.size() - 1, table, nth(1))};
    return run_job(cuda, job).logits;
  };
  prefill(cuda, first, 200, blocks(0, 8), nth(1));
  prefill(cuda, second, 200, blocks(8, 8), nth(1));
  const auto stayed = decode(first, blocks(0, 8));
  const auto other = decode(second, blocks(8, 8));
  // Both go out before a step that overwrites their blocks.
  DeviceJob job;
  job.moves = {out_of(blocks(0, 8), 31, 1), out_of(blocks(8, 8), 18, 2)};
  job.sequences = {sequence(prompt(engines.model, 60, 99), 0, blocks(0, 16))};
  run_job(cuda, job);
  // Back in other places, the step at once behind, or in a job of its own.
  const std::vector<BlockIndex> elsewhere = {40, 12, 33, 50, 13, 41, 63, 20};
  EXPECT_EQ(decode(first, elsewhere, {into(elsewhere, 31, 1)}), stayed);
  move(cuda, {into(blocks(50, 5), 18, 2)});
  EXPECT_EQ(decode(second, blocks(50, 5)), other);
}

// Out and in within one step: the blocks of one become the other's.
TEST_P(CudaEngine, BlocksPassFromOneContextToAnotherInOneStep) {
  const Engines engines(plan());
  Device* const cuda = engines.cuda.get();
  const auto first = prompt(engines.model, 20, 8);
  prefill(cuda, first, 200, blocks(0, 5));
  const auto expected = run(cuda, {sequence(first, 19, blocks(0, 5))});
  move(cuda, {out_of(blocks(0, 5), 20, 1)});
  prefill(cuda, prompt(engines.model, 20, 9), 200, blocks(0, 5));
  DeviceJob job;
  job.moves = {out_of(blocks(0, 5), 20, 2), into(blocks(0, 5), 20, 1)};
  job.sequences = {sequence(first, 19, blocks(0, 5))};
  EXPECT_EQ(run_job(cuda, job).logits, expected);
}

std::vector<Sequence> decodes(const ModelConfig& model, std::size_t count) {
  std::vector<Sequence> sequences;
  for (std::size_t i = 0; i < count; ++i) {
    const auto n = static_cast<int>(i);
    const auto ids = prompt(model, 5 + 3 * n, 30 + i);
    sequences.push_back(
        sequence(ids, ids.size() - 1, blocks(n * 9, 9), i % 3 == 2 ? kBaseModel : nth(i % 4)));
  }
  return sequences;
}

// Steps of decodes run eagerly, are recorded when they come again, and then run as graphs: always
// with the same result, whatever the batch was when its bucket was recorded.
TEST_P(CudaEngine, DecodesAreTheSameInAnyBucketAndAsGraphs) {
  for (const LoraKernel kernel : kAllLoraKernels) {
    const Engines engines(plan());
    engines.wait();
    const auto fill = [&](Device* device, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) {
        const auto n = static_cast<int>(i);
        const AdapterId adapter = i % 3 == 2 ? kBaseModel : nth(i % 4);
        prefill(device, but_last(prompt(engines.model, 5 + 3 * n, 30 + i)), 200, blocks(n * 9, 9),
                adapter);
      }
    };
    fill(engines.cpu.get(), 7);
    fill(engines.cuda.get(), 7);
    // Every bucket once; where graphs are recorded also other batches, before and after that.
    std::vector<std::size_t> counts = {7, 1, 2, 3};
    if (device_records()) counts = {7, 5, 6, 1, 2, 3, 7, 5, 1, 4, 3};
    for (const std::size_t count : counts) {
      const auto batch = decodes(engines.model, count);
      fill(engines.cuda.get(), 1);  // a step of another kind in between
      const auto expected = run(engines.cpu.get(), batch, Exec::kUnmerged, kernel);
      const auto first = run(engines.cuda.get(), batch, Exec::kUnmerged, kernel);
      EXPECT_LT(difference(first, expected), allowed()) << name(kernel) << ", " << count;
      EXPECT_EQ(run(engines.cuda.get(), batch, Exec::kUnmerged, kernel), first);
      EXPECT_EQ(engines.cuda->ran_graph(), device_records()) << name(kernel) << ", " << count;
    }
  }
}

// A graph of merged layers is not one of the base's.
TEST_P(CudaEngine, GraphsFollowTheMergedLayers) {
  const Engines engines(plan());
  Device* const cuda = engines.cuda.get();
  const auto ids = prompt(engines.model, 9, 50);
  prefill(cuda, but_last(ids), 200, blocks(0, 9));
  std::vector<std::vector<float>> by_weights;
  for (int round = 0; round < 3; ++round) {
    std::size_t i = 0;
    for (const AdapterId merged : {kBaseModel, nth(0), nth(1)}) {
      DeviceJob job;
      job.mode.exec = Exec::kMerged;
      job.unmerge = true;
      job.merge = merged;
      job.sequences = {sequence(ids, 8, blocks(0, 9))};
      const auto got = run_job(cuda, job).logits;
      if (round == 0) by_weights.push_back(got);
      EXPECT_EQ(got, by_weights[i++]);
    }
  }
  EXPECT_EQ(engines.cuda->ran_graph(), device_records());
  EXPECT_GT(difference(by_weights[1], by_weights[0]), allowed() / 3);
  EXPECT_GT(difference(by_weights[2], by_weights[1]), allowed() / 3);
}

TEST_P(CudaEngine, AStepRightBehindALoadWaitsForIt) {
  for (const bool held : {false, true}) {
    const Engines engines(plan());
    Device* const cuda = engines.cuda.get();
    for (std::size_t i = 0; i < engines.lora.size(); ++i) cuda->evict(nth(i));
    const auto ids = prompt(engines.model, 12, 60);
    for (int round = 0; round < 6; ++round) {
      const auto i = static_cast<std::size_t>(round) % 4;
      if (held) cuda->hold({nth(i), 64}, engines.lora[i]);
      cuda->load({nth(i), 64}, engines.lora[i]);
      const auto expected = prefill(engines.cpu.get(), ids, 200, blocks(0, 9), nth(i));
      const auto got = prefill(cuda, ids, 200, blocks(0, 9), nth(i));
      EXPECT_LT(difference(got, expected), allowed()) << "round " << round;
      cuda->wait(nth(i));
      EXPECT_EQ(prefill(cuda, ids, 200, blocks(0, 9), nth(i)), got);
      cuda->evict(nth(i));
    }
  }
}

TEST_P(CudaEngine, AdaptersComeAndGoInUnifiedMemory) {
  DevicePlan device = plan();
  device.padded = false;
  device.adapters = 6;
  device.adapter_bytes = 2 << 20;
  const Engines engines(device, 0);
  Device* const cuda = engines.cuda.get();
  const auto ids = prompt(engines.model, 6, 61);
  std::vector<std::vector<float>> expected;
  for (std::size_t i = 0; i < engines.lora.size(); ++i) {
    expected.push_back(prefill(cuda, ids, 200, blocks(0, 9), nth(i)));
    cuda->evict(nth(i));
  }
  RngStream rng(3, "history");
  std::vector<std::pair<std::size_t, AdapterId>> there;
  for (std::size_t step = 0; step < 40; ++step) {
    if (there.size() == 6 || (!there.empty() && rng.below(2) == 0)) {
      const auto gone = there.begin() + static_cast<std::ptrdiff_t>(rng.below(there.size()));
      cuda->evict(gone->second);
      there.erase(gone);
    } else {
      const auto i = static_cast<std::size_t>(rng.below(3));
      there.emplace_back(i, nth(step));
      cuda->load({nth(step)}, engines.lora[i]);
    }
    for (const auto& [i, id] : there) {
      if (rng.below(3) != 0) continue;
      EXPECT_EQ(prefill(cuda, ids, 200, blocks(0, 9), id), expected[i]);
    }
  }
}

// Hides that weights are random, so that they are copied from the host.
class Stored final : public ModelWeights {
 public:
  explicit Stored(const ModelWeights& weights) : weights_(weights) {}
  Tensor linear(int layer, LinearLayer which) const override {
    return weights_.linear(layer, which);
  }
  Tensor vector(int layer, LayerVector which) const override {
    return weights_.vector(layer, which);
  }
  Tensor tensor(ModelTensor which) const override { return weights_.tensor(which); }
  DType type() const override { return weights_.type(); }

 private:
  const ModelWeights& weights_;
};

TEST_P(CudaEngine, WeightsGeneratedOnTheDeviceAreTheHosts) {
  for (const bool tied : {false, true}) {
    ModelConfig model = small_model();
    model.tied_embeddings = tied;
    const auto weights = random_weights(model, 11);
    cuda::CudaDevice generated(model, *weights, plan());
    cuda::CudaDevice copied(model, Stored(*weights), plan());
    const auto ids = prompt(model, 20, 70);
    // On a GPU the two may choose other algorithms for their products.
    EXPECT_LT(difference(prefill(&generated, ids, 200, blocks(0, 9)),
                         prefill(&copied, ids, 200, blocks(0, 9))),
              allowed() / 2);
  }
}

TEST_P(CudaEngine, SamplingIsSeededAndGreedyInTheLimit) {
  Engines engines(plan());
  const auto ids = prompt(engines.model, 12, 5);
  const auto sample = [&](const SamplingOptions& sampling) {
    return servelab::generate(engines.cuda.get(), ids, kBaseModel, Exec::kUnmerged, 20, sampling);
  };
  const auto greedy = sample({});
  EXPECT_EQ(greedy, sample({1.0, 1e-6, 1}));
  const auto warm = sample({1.0, 1.0, 1});
  EXPECT_EQ(warm, sample({1.0, 1.0, 1}));
  EXPECT_NE(warm, greedy);
  EXPECT_NE(warm, sample({1.0, 1.0, 2}));
}

TEST_P(CudaEngine, PartsAddUpToTheTotal) {
  Engines engines(plan());
  DeviceJob job;
  job.mode.kernel = LoraKernel::kMbgmv;
  job.sequences = decodes(engines.model, 4);
  job.measure_parts = true;
  const StepParts times = run_job(engines.cuda.get(), job).parts;
  EXPECT_GT(times.attention, 0);
  EXPECT_GT(times.lora, 0);
  EXPECT_GE(times.attention + times.lora + times.dense, times.total);
  job.measure_parts = false;
  const StepParts whole = run_job(engines.cuda.get(), job).parts;
  EXPECT_GT(whole.total, 0);
  EXPECT_EQ(whole.dense, whole.total);
}

INSTANTIATE_TEST_SUITE_P(Types, CudaEngine, ::testing::Values(DType::kBf16, DType::kF16),
                         [](const auto& info) { return kernels::name(info.param); });

}  // namespace
}  // namespace servelab
