// The CUDA engine's forward pass against the CPU engine's in f32, and what must hold within it:
// batches, chunks, merges, swaps, padding and graphs.
#include <gmock/gmock.h>

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
std::vector<Part> mixed_parts(const ModelConfig& model) {
  std::vector<Part> parts;
  for (int i = 0; i < 7; ++i) {
    Part part;
    part.ids = prompt(model, 3 + 5 * i, 10 + static_cast<std::uint64_t>(i));
    part.table = blocks(i * 9, 9);
    part.context = i % 2 == 0 ? 0 : part.ids.size() - 1;
    parts.push_back(part);
  }
  return parts;
}

std::vector<float> run_mixed(Executor* executor,
                             const std::vector<std::unique_ptr<DeviceAdapter>>& adapters,
                             LoraKernel kernel) {
  std::vector<Part> parts = mixed_parts(executor->model());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i].adapter = i == 1 || i == 4 ? nullptr : adapters[i % 4].get();
    if (parts[i].context > 0) {
      prefill(executor, {parts[i].ids.begin(), parts[i].ids.end() - 1}, 200, parts[i].adapter,
              parts[i].table);
    }
  }
  return run(executor, parts, Exec::kUnmerged, kernel);
}

TEST_P(CudaEngine, AMixedBatchUnderEveryKernel) {
  for (const bool padded : {true, false}) {
    DevicePlan device = plan();
    device.padded = padded;
    device.adapter_bytes = 1 << 20;
    Engines engines(device, padded ? 64 : 0);
    const auto expected = run_mixed(engines.cpu.get(), engines.on_cpu, LoraKernel::kSgmv);
    for (const LoraKernel kernel :
         {LoraKernel::kBgmv, LoraKernel::kMbgmv, LoraKernel::kSgmv, LoraKernel::kEinsum}) {
      if (kernel == LoraKernel::kBgmv && !padded) continue;
      const auto got = run_mixed(engines.cuda.get(), engines.on_cuda, kernel);
      EXPECT_LT(difference(got, expected), allowed()) << name(kernel) << " padded " << padded;
    }
  }
}

TEST_P(CudaEngine, AdaptersChangeTheOutputByMoreThanTheTolerance) {
  Engines engines(plan());
  const auto ids = prompt(engines.model, 20, 1);
  const auto base = prefill(engines.cuda.get(), ids, 64, nullptr, blocks(0, 8));
  for (const auto& adapter : engines.on_cuda) {
    const auto adapted = prefill(engines.cuda.get(), ids, 64, adapter.get(), blocks(0, 8));
    EXPECT_GT(difference(adapted, base), 3 * allowed());
  }
}

TEST_P(CudaEngine, ChunkedPrefillIsTheWhole) {
  Engines engines(plan());
  const auto ids = prompt(engines.model, 77, 2);
  const auto expected =
      prefill(engines.cpu.get(), ids, 200, engines.on_cpu[2].get(), blocks(0, 20));
  for (const std::size_t chunk : {200u, 1u, 7u, 64u, 76u}) {
    const auto got =
        prefill(engines.cuda.get(), ids, chunk, engines.on_cuda[2].get(), blocks(20, 20));
    EXPECT_LT(difference(got, expected), allowed()) << "chunk " << chunk;
  }
}

TEST_P(CudaEngine, MergedAgreesWithUnmergedAndUnmergingRestoresEveryBit) {
  Engines engines(plan());
  Executor* const cuda = engines.cuda.get();
  const auto ids = prompt(engines.model, 40, 3);
  const auto base = prefill(cuda, ids, 200, nullptr, blocks(0, 20));
  for (std::size_t i = 0; i < engines.on_cuda.size(); ++i) {
    const auto expected =
        prefill(engines.cpu.get(), ids, 200, engines.on_cpu[i].get(), blocks(0, 20));
    cuda->merge(*engines.on_cuda[i]);
    const auto merged = prefill(cuda, ids, 200, nullptr, blocks(0, 20), Exec::kMerged);
    cuda->unmerge();
    EXPECT_LT(difference(merged, expected), allowed()) << "adapter " << i;
    EXPECT_EQ(prefill(cuda, ids, 200, nullptr, blocks(0, 20)), base);
  }
}

// An adapter of some layers and targets only, after one that touches all: what it leaves alone is
// the base's again.
TEST_P(CudaEngine, MergingANarrowAdapterAfterAWideOne) {
  DevicePlan device = plan();
  device.adapters = 5;
  Engines engines(device);
  const auto ids = prompt(engines.model, 30, 4);
  const auto narrow = random_adapter(engines.model, "narrow", 8, {"k", "up"}, 99);
  const auto on_cpu = engines.cpu->pack_adapter(*narrow, 0);
  const auto on_cuda = engines.cuda->pack_adapter(*narrow, 64);
  engines.cuda->merge(*engines.on_cuda[3]);
  engines.cuda->merge(*on_cuda);
  const auto merged = prefill(engines.cuda.get(), ids, 200, nullptr, blocks(0, 20), Exec::kMerged);
  const auto expected = prefill(engines.cpu.get(), ids, 200, on_cpu.get(), blocks(0, 20));
  EXPECT_LT(difference(merged, expected), allowed());
}

TEST_P(CudaEngine, AWholeModelIsTheAdapterFoldedIn) {
  DevicePlan device = plan();
  device.whole_models = true;
  device.adapters = 2;
  Engines engines(device);
  const auto ids = prompt(engines.model, 30, 5);
  for (int round = 0; round < 2; ++round) {  // the places are used again
    for (const std::size_t i : {1u, 3u}) {
      const auto on_cpu = engines.cpu->pack_adapter(*engines.lora[i], 0);
      const auto whole = engines.cuda->pack_whole_model(*engines.lora[i]);
      const auto expected = prefill(engines.cpu.get(), ids, 200, on_cpu.get(), blocks(0, 20));
      const auto got =
          prefill(engines.cuda.get(), ids, 7, whole.get(), blocks(0, 20), Exec::kMerged);
      EXPECT_LT(difference(got, expected), allowed()) << "adapter " << i;
    }
  }
}

TEST_P(CudaEngine, AContextCanBeSwappedOutAndInElsewhere) {
  Engines engines(plan());
  Executor* const cuda = engines.cuda.get();
  const DeviceAdapter* const adapter = engines.on_cuda[1].get();
  const auto first = prompt(engines.model, 31, 6);
  const auto second = prompt(engines.model, 18, 7);
  const auto decode = [&](const std::vector<std::int32_t>& ids,
                          const std::vector<BlockIndex>& table) {
    return run(cuda, {{ids, ids.size() - 1, table, adapter}});
  };
  prefill(cuda, first, 200, adapter, blocks(0, 8));
  prefill(cuda, second, 200, adapter, blocks(8, 8));
  const auto stayed = decode(first, blocks(0, 8));
  const auto other = decode(second, blocks(8, 8));
  // Both go out in one step, and their blocks are overwritten.
  const HostMemory a = cuda->host_memory(cuda->context_bytes(31));
  const HostMemory b = cuda->host_memory(cuda->context_bytes(18));
  cuda->copy_out(blocks(0, 8), 31, a.get());
  cuda->copy_out(blocks(8, 8), 18, b.get());
  prefill(cuda, prompt(engines.model, 60, 99), 200, nullptr, blocks(0, 16));
  // Back in other places, the step at once behind.
  const std::vector<BlockIndex> elsewhere = {40, 12, 33, 50, 13, 41, 63, 20};
  cuda->copy_in(elsewhere, 31, a.get());
  EXPECT_EQ(decode(first, elsewhere), stayed);
  cuda->copy_in(blocks(50, 5), 18, b.get());
  cuda->finish_copies();
  EXPECT_EQ(decode(second, blocks(50, 5)), other);
}

// Out and in within one step: the blocks of one become the other's.
TEST_P(CudaEngine, BlocksPassFromOneContextToAnotherInOneStep) {
  Engines engines(plan());
  Executor* const cuda = engines.cuda.get();
  const auto first = prompt(engines.model, 20, 8);
  const auto second = prompt(engines.model, 20, 9);
  prefill(cuda, first, 200, nullptr, blocks(0, 5));
  const auto expected = run(cuda, {{first, 19, blocks(0, 5), nullptr}});
  const HostMemory a = cuda->host_memory(cuda->context_bytes(20));
  const HostMemory b = cuda->host_memory(cuda->context_bytes(20));
  cuda->copy_out(blocks(0, 5), 20, a.get());
  prefill(cuda, second, 200, nullptr, blocks(0, 5));
  cuda->copy_out(blocks(0, 5), 20, b.get());
  cuda->copy_in(blocks(0, 5), 20, a.get());
  EXPECT_EQ(run(cuda, {{first, 19, blocks(0, 5), nullptr}}), expected);
}

std::vector<Part> decodes(const Engines& engines, std::size_t count,
                          const std::vector<std::unique_ptr<DeviceAdapter>>& adapters) {
  std::vector<Part> parts;
  for (std::size_t i = 0; i < count; ++i) {
    const auto n = static_cast<int>(i);
    Part part;
    part.ids = prompt(engines.model, 5 + 3 * n, 30 + i);
    part.context = part.ids.size() - 1;
    part.table = blocks(n * 9, 9);
    part.adapter = i % 3 == 2 ? nullptr : adapters[i % 4].get();
    parts.push_back(part);
  }
  return parts;
}

// Steps of decodes run eagerly, are recorded when they come again, and then run as graphs: always
// with the same result, whatever the batch was when its bucket was recorded.
TEST_P(CudaEngine, DecodesAreTheSameInAnyBucketAndAsGraphs) {
  for (const LoraKernel kernel :
       {LoraKernel::kBgmv, LoraKernel::kMbgmv, LoraKernel::kSgmv, LoraKernel::kEinsum}) {
    Engines engines(plan());
    for (const auto& adapter : engines.on_cuda) adapter->wait();  // no graph before it is there
    const auto fill = [](Executor* executor, const Part& part) {
      prefill(executor, {part.ids.begin(), part.ids.end() - 1}, 200, part.adapter, part.table);
    };
    for (const Part& part : decodes(engines, 7, engines.on_cpu)) fill(engines.cpu.get(), part);
    for (const Part& part : decodes(engines, 7, engines.on_cuda)) fill(engines.cuda.get(), part);
    // Every bucket once; where graphs are recorded also other batches, before and after that.
    std::vector<std::size_t> counts = {7, 1, 2, 3};
    if (device_records()) counts = {7, 5, 6, 1, 2, 3, 7, 5, 1, 4, 3};
    for (const std::size_t count : counts) {
      const auto on_cpu = decodes(engines, count, engines.on_cpu);
      const auto on_cuda = decodes(engines, count, engines.on_cuda);
      fill(engines.cuda.get(), on_cuda[0]);  // a step of another kind in between
      const auto expected = run(engines.cpu.get(), on_cpu, Exec::kUnmerged, kernel);
      const auto first = run(engines.cuda.get(), on_cuda, Exec::kUnmerged, kernel);
      EXPECT_LT(difference(first, expected), allowed()) << name(kernel) << ", " << count;
      EXPECT_EQ(run(engines.cuda.get(), on_cuda, Exec::kUnmerged, kernel), first);
      EXPECT_EQ(engines.cuda->ran_graph(), device_records()) << name(kernel) << ", " << count;
    }
  }
}

// A graph of merged layers is not one of the base's.
TEST_P(CudaEngine, GraphsFollowTheMergedLayers) {
  Engines engines(plan());
  Executor* const cuda = engines.cuda.get();
  const std::vector<Part> parts = {{prompt(engines.model, 9, 50), 8, blocks(0, 9), nullptr}};
  prefill(cuda, {parts[0].ids.begin(), parts[0].ids.end() - 1}, 200, nullptr, blocks(0, 9));
  std::vector<std::vector<float>> by_weights;
  for (int round = 0; round < 3; ++round) {
    std::size_t i = 0;
    for (const int merged : {-1, 0, 1}) {
      cuda->unmerge();
      if (merged >= 0) cuda->merge(*engines.on_cuda[static_cast<std::size_t>(merged)]);
      const auto got = run(cuda, parts, Exec::kMerged);
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
    Engines engines(plan());
    engines.on_cuda.clear();
    const auto ids = prompt(engines.model, 12, 60);
    for (int round = 0; round < 6; ++round) {
      const auto i = static_cast<std::size_t>(round) % 4;
      if (held) engines.cuda->hold_on_host(engines.lora[i], 64);
      const auto adapter = engines.cuda->pack_adapter(*engines.lora[i], 64);
      const auto expected =
          prefill(engines.cpu.get(), ids, 200, engines.on_cpu[i].get(), blocks(0, 9));
      const auto got = prefill(engines.cuda.get(), ids, 200, adapter.get(), blocks(0, 9));
      EXPECT_LT(difference(got, expected), allowed()) << "round " << round;
      adapter->wait();
      EXPECT_EQ(prefill(engines.cuda.get(), ids, 200, adapter.get(), blocks(0, 9)), got);
    }
  }
}

TEST_P(CudaEngine, AdaptersComeAndGoInUnifiedMemory) {
  DevicePlan device = plan();
  device.padded = false;
  device.adapters = 6;
  device.adapter_bytes = 2 << 20;
  Engines engines(device, 0);
  const auto ids = prompt(engines.model, 6, 61);
  std::vector<std::vector<float>> expected;
  for (const auto& adapter : engines.on_cuda) {
    expected.push_back(prefill(engines.cuda.get(), ids, 200, adapter.get(), blocks(0, 9)));
  }
  engines.on_cuda.clear();
  RngStream rng(3, "history");
  std::vector<std::pair<std::size_t, std::unique_ptr<DeviceAdapter>>> there;
  for (int step = 0; step < 40; ++step) {
    if (there.size() == 6 || (!there.empty() && rng.below(2) == 0)) {
      there.erase(there.begin() + static_cast<std::ptrdiff_t>(rng.below(there.size())));
    } else {
      const auto i = static_cast<std::size_t>(rng.below(3));
      there.emplace_back(i, engines.cuda->pack_adapter(*engines.lora[i], 0));
    }
    for (const auto& [i, adapter] : there) {
      if (rng.below(3) != 0) continue;
      EXPECT_EQ(prefill(engines.cuda.get(), ids, 200, adapter.get(), blocks(0, 9)), expected[i]);
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
    cuda::CudaExecutor generated(model, *weights, plan());
    cuda::CudaExecutor copied(model, Stored(*weights), plan());
    const auto ids = prompt(model, 20, 70);
    // On a GPU the two may choose other algorithms for their products.
    EXPECT_LT(difference(prefill(&generated, ids, 200, nullptr, blocks(0, 9)),
                         prefill(&copied, ids, 200, nullptr, blocks(0, 9))),
              allowed() / 2);
  }
}

TEST_P(CudaEngine, SamplingIsSeededAndGreedyInTheLimit) {
  Engines engines(plan());
  const auto ids = prompt(engines.model, 12, 5);
  const auto sample = [&](const SamplingOptions& sampling) {
    std::vector<std::int32_t> all = ids;
    std::vector<std::int32_t> sampled;
    std::size_t context = 0;
    for (int i = 0; i < 20; ++i) {
      Part part{all, context, blocks(0, 9), nullptr};
      SequenceSlice slice = part.slice();
      slice.draw = static_cast<std::uint64_t>(i);
      engines.cuda->run({&slice, 1}, {Exec::kUnmerged, LoraKernel::kSgmv}, sampling, &sampled);
      context = all.size();
      all.push_back(sampled.front());
    }
    return all;
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
  std::vector<SequenceSlice> slices;
  const auto parts = decodes(engines, 4, engines.on_cuda);
  for (const Part& part : parts) slices.push_back(part.slice());
  std::vector<std::int32_t> sampled;
  RunMode apart = StepMode{Exec::kUnmerged, LoraKernel::kMbgmv};
  apart.measure_parts = true;
  const StepParts times = engines.cuda->run(slices, apart, {}, &sampled);
  EXPECT_GT(times.attention, 0);
  EXPECT_GT(times.lora, 0);
  EXPECT_GE(times.attention + times.lora + times.dense, times.total);
  apart.measure_parts = false;
  const StepParts whole = engines.cuda->run(slices, apart, {}, &sampled);
  EXPECT_GT(whole.total, 0);
  EXPECT_EQ(whole.dense, whole.total);
}

INSTANTIATE_TEST_SUITE_P(Types, CudaEngine, ::testing::Values(DType::kBf16, DType::kF16),
                         [](const auto& info) { return kernels::name(info.param); });

}  // namespace
}  // namespace servelab
