// The CPU engine's forward pass: what must hold bit for bit (chunking, batching, threads, kernels,
// swapping, returning from a merge) and what within a tolerance (merged against unmerged).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/backend/cpu/executor.h"
#include "engine/cli/generate.h"
#include "engine/core/check.h"
#include "engine/core/rng.h"

namespace servelab {
namespace {

using kernels::DType;
using kernels::Isa;

constexpr int kBlocks = 64;
constexpr int kBlockTokens = 4;

ModelConfig tiny_model(bool bias) {
  ModelConfig model;
  model.name = "tiny";
  model.layers = 3;
  model.hidden = 64;
  model.heads = 4;
  model.kv_heads = 2;
  model.head_dim = 16;
  model.ffn = 88;
  model.vocab = 101;
  model.qkv_bias = bias;
  model.max_context_tokens = kBlocks * kBlockTokens;
  model.source = "test";
  return model;
}

struct Setting {
  Isa isa;
  DType type;
  int threads;
};

class Executor : public ::testing::TestWithParam<Setting> {
 protected:
  Executor() : model_(tiny_model(true)), weights_(random_weights(model_, 7)) {
    for (const int rank : {4, 8, 16, 64}) {
      const auto n = static_cast<std::uint64_t>(rank);
      adapters_.push_back(executor().pack_adapter(
          *random_adapter(model_, "a", rank, {"q", "k", "v", "o", "gate", "up", "down"}, n), 64));
    }
  }

  CpuExecutorOptions options() const {
    CpuExecutorOptions options;
    options.isa = GetParam().isa;
    options.type = GetParam().type;
    options.threads = GetParam().threads;
    options.kv_blocks = kBlocks;
    options.block_tokens = kBlockTokens;
    options.max_batch = 16;
    options.max_batch_tokens = 200;
    return options;
  }
  CpuExecutor& executor() {
    if (executor_ == nullptr) {
      executor_ = std::make_unique<CpuExecutor>(model_, *weights_, options());
    }
    return *executor_;
  }

  std::vector<std::int32_t> prompt(int tokens, std::uint64_t seed) const {
    RngStream rng(seed, "prompt");
    std::vector<std::int32_t> ids;
    for (int i = 0; i < tokens; ++i) {
      ids.push_back(static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(model_.vocab))));
    }
    return ids;
  }

  static std::vector<BlockIndex> blocks(int first, int count) {
    std::vector<BlockIndex> list(static_cast<std::size_t>(count));
    std::iota(list.begin(), list.end(), first);
    return list;
  }

  std::vector<float> logits() {
    const auto span = executor().logits();
    return {span.begin(), span.end()};
  }

  // Logits after the last token of `ids`, computed in chunks of `chunk`.
  std::vector<float> prefill(const std::vector<std::int32_t>& ids, std::size_t chunk,
                             const DeviceAdapter* adapter, const std::vector<BlockIndex>& table,
                             Exec exec = Exec::kUnmerged) {
    std::vector<std::int32_t> sampled;
    for (std::size_t at = 0; at < ids.size(); at += chunk) {
      SequenceSlice slice;
      slice.context = static_cast<std::int32_t>(at);
      slice.tokens = std::span(ids).subspan(at, std::min(chunk, ids.size() - at));
      slice.blocks = table;
      slice.adapter = adapter;
      slice.samples = at + chunk >= ids.size();
      executor().run({&slice, 1}, {exec, LoraKernel::kSgmv}, {}, &sampled);
    }
    return logits();
  }

  ModelConfig model_;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<CpuExecutor> executor_;
  std::vector<std::unique_ptr<DeviceAdapter>> adapters_;
};

TEST_P(Executor, AdaptersChangeTheOutput) {
  const auto ids = prompt(20, 1);
  const auto base = prefill(ids, 64, nullptr, blocks(0, 8));
  for (const auto& adapter : adapters_) {
    const auto adapted = prefill(ids, 64, adapter.get(), blocks(0, 8));
    double difference = 0;
    for (std::size_t i = 0; i < base.size(); ++i) {
      ASSERT_TRUE(std::isfinite(adapted[i]));
      difference = std::max<double>(difference, std::abs(base[i] - adapted[i]));
    }
    EXPECT_GT(difference, 0.01);
  }
}

// Prompts and decodes of every rank, in one batch with the same adapters on the device, under every
// kernel: what the host computes is what the device computes, bit for bit.
TEST_P(Executor, AdaptersOnTheHostGiveTheSameBits) {
  std::vector<std::unique_ptr<DeviceAdapter>> on_host;
  std::vector<std::vector<float>> on_device;
  const auto ids = prompt(9, 3);
  for (const int rank : {4, 8, 16, 64}) {
    on_host.push_back(executor().host_adapter(
        random_adapter(model_, "a", rank, {"q", "k", "v", "o", "gate", "up", "down"},
                       static_cast<std::uint64_t>(rank))));
    EXPECT_EQ(on_host.back()->rank(), rank);
    on_device.push_back(prefill(ids, 8, adapters_[on_host.size() - 1].get(), blocks(0, 3)));
    EXPECT_EQ(prefill(ids, 8, on_host.back().get(), blocks(0, 3)), on_device.back()) << rank;
  }
  for (const LoraKernel kernel :
       {LoraKernel::kBgmv, LoraKernel::kMbgmv, LoraKernel::kSgmv, LoraKernel::kEinsum}) {
    // Four sequences on the host, four on the device: all but the last token, then that one.
    std::vector<SequenceSlice> slices(8);
    std::vector<std::vector<BlockIndex>> tables;
    for (int i = 0; i < 8; ++i) tables.push_back(blocks(3 * i, 3));
    std::vector<std::int32_t> sampled;
    for (const std::size_t at : {std::size_t{0}, ids.size() - 1}) {
      for (std::size_t i = 0; i < 8; ++i) {
        slices[i].context = static_cast<std::int32_t>(at);
        slices[i].tokens = std::span(ids).subspan(at, at == 0 ? ids.size() - 1 : 1);
        slices[i].blocks = tables[i];
        slices[i].adapter = i < 4 ? on_host[i].get() : adapters_[i - 4].get();
        slices[i].samples = at > 0;
      }
      executor().run(slices, {Exec::kUnmerged, kernel}, {}, &sampled);
    }
    const auto rows = logits();
    const auto vocab = static_cast<long>(model_.vocab);
    for (long i = 0; i < 8; ++i) {
      EXPECT_EQ(std::vector<float>(rows.begin() + i * vocab, rows.begin() + (i + 1) * vocab),
                on_device[static_cast<std::size_t>(i % 4)])
          << name(kernel) << " row " << i;
    }
  }
}

TEST_P(Executor, ChunkedPrefillIsBitForBitTheWhole) {
  const auto ids = prompt(77, 2);
  for (const DeviceAdapter* adapter : {static_cast<DeviceAdapter*>(nullptr), adapters_[2].get()}) {
    const auto whole = prefill(ids, 200, adapter, blocks(0, 20));
    for (const std::size_t chunk : {1u, 7u, 16u, 64u, 76u}) {
      EXPECT_EQ(prefill(ids, chunk, adapter, blocks(20, 20)), whole) << "chunk " << chunk;
    }
  }
}

// Seven sequences, decodes and prefills, base and adapters, in one batch under every kernel.
TEST_P(Executor, ARowIsBitForBitTheSameInAnyBatch) {
  std::vector<std::vector<std::int32_t>> ids;
  std::vector<const DeviceAdapter*> adapters;
  for (int i = 0; i < 7; ++i) {
    ids.push_back(prompt(3 + 5 * i, 10 + static_cast<std::uint64_t>(i)));
    adapters.push_back(i < 2 ? nullptr : adapters_[static_cast<std::size_t>(i) % 4].get());
  }
  std::vector<std::vector<float>> alone;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    alone.push_back(prefill(ids[i], 200, adapters[i], blocks(0, 9)));
  }
  for (const LoraKernel kernel :
       {LoraKernel::kBgmv, LoraKernel::kMbgmv, LoraKernel::kSgmv, LoraKernel::kEinsum}) {
    std::vector<std::vector<BlockIndex>> tables;
    std::vector<SequenceSlice> slices;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      tables.push_back(blocks(static_cast<int>(i) * 9, 9));
      const std::size_t earlier = i % 2 == 0 ? 0 : ids[i].size() - 1;  // every other one decodes
      if (earlier > 0) prefill({ids[i].begin(), ids[i].end() - 1}, 200, adapters[i], tables[i]);
    }
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::size_t earlier = i % 2 == 0 ? 0 : ids[i].size() - 1;
      SequenceSlice slice;
      slice.context = static_cast<std::int32_t>(earlier);
      slice.tokens = std::span(ids[i]).subspan(earlier);
      slice.blocks = tables[i];
      slice.adapter = adapters[i];
      slice.samples = true;
      slices.push_back(slice);
    }
    std::vector<std::int32_t> sampled;
    executor().run(slices, {Exec::kUnmerged, kernel}, {}, &sampled);
    ASSERT_EQ(sampled.size(), ids.size());
    const auto together = logits();
    const auto vocab = static_cast<std::size_t>(model_.vocab);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::vector<float> row(together.begin() + static_cast<std::ptrdiff_t>(i * vocab),
                                   together.begin() + static_cast<std::ptrdiff_t>((i + 1) * vocab));
      EXPECT_EQ(row, alone[i]) << name(kernel) << ", sequence " << i;
    }
  }
}

TEST_P(Executor, MergedAgreesWithUnmergedAndUnmergingRestoresEveryBit) {
  const auto ids = prompt(40, 3);
  const auto base = prefill(ids, 200, nullptr, blocks(0, 20));
  const double tolerance = GetParam().type == DType::kF32 ? 2e-4 : 0.06;
  for (const auto& adapter : adapters_) {
    const auto unmerged = prefill(ids, 200, adapter.get(), blocks(0, 20));
    executor().merge(*adapter);
    const auto merged = prefill(ids, 200, nullptr, blocks(0, 20), Exec::kMerged);
    executor().unmerge();
    float largest = 0;
    for (const float value : unmerged) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < merged.size(); ++i) {
      ASSERT_NEAR(merged[i], unmerged[i], tolerance * largest) << "rank " << adapter->rank();
    }
    EXPECT_NE(merged, base);
    EXPECT_EQ(prefill(ids, 200, nullptr, blocks(0, 20)), base);
  }
}

TEST_P(Executor, AContextCanBeSwappedOutAndInElsewhere) {
  auto ids = prompt(30, 4);
  const std::vector<std::int32_t> next = {5};
  prefill(ids, 200, adapters_[1].get(), blocks(0, 8));
  const auto decode = [&](const std::vector<BlockIndex>& table) {
    std::vector<std::int32_t> sampled;
    SequenceSlice slice;
    slice.context = static_cast<std::int32_t>(ids.size());
    slice.tokens = next;
    slice.blocks = table;
    slice.adapter = adapters_[1].get();
    slice.samples = true;
    executor().run({&slice, 1}, {Exec::kUnmerged, LoraKernel::kBgmv}, {}, &sampled);
    return logits();
  };
  std::vector<std::byte> host(30 * static_cast<std::size_t>(executor().kv_bytes_per_token()));
  executor().copy_out(blocks(0, 8), 30, host.data());
  const auto stayed = decode(blocks(0, 8));
  prefill(prompt(32, 99), 200, nullptr, blocks(0, 8));  // someone else takes the blocks
  const std::vector<BlockIndex> elsewhere = {40, 12, 33, 50, 13, 41, 63, 20};
  executor().copy_in(elsewhere, 30, host.data());
  EXPECT_EQ(decode(elsewhere), stayed);
}

TEST_P(Executor, SamplingIsSeededAndGreedyInTheLimit) {
  const auto ids = prompt(12, 5);
  SamplingOptions greedy;
  SamplingOptions warm{1.0, 1.0, 1};
  SamplingOptions narrow{1.0, 1e-6, 1};
  const auto run = [&](const SamplingOptions& sampling) {
    return generate(&executor(), ids, adapters_[0].get(), Exec::kUnmerged, 24, sampling);
  };
  EXPECT_EQ(run(greedy), run(narrow));
  EXPECT_EQ(run(warm), run(warm));
  EXPECT_NE(run(warm), run(greedy));
  SamplingOptions other = warm;
  other.seed = 2;
  EXPECT_NE(run(warm), run(other));
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const DType type : {DType::kF32, DType::kBf16}) {
    all.push_back({Isa::kReference, type, 1});
    for (const Isa isa : {Isa::kAvx2, Isa::kAvx512Bf16}) {
      if (!kernels::supported(isa)) continue;
      for (const int threads : {1, 2, 3}) all.push_back({isa, type, threads});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Executor, ::testing::ValuesIn(settings()),
                         [](const ::testing::TestParamInfo<Setting>& info) {
                           std::string text = kernels::ops(info.param.isa).name;
                           std::replace(text.begin(), text.end(), '-', '_');
                           return text + "_" + kernels::name(info.param.type) + "_" +
                                  std::to_string(info.param.threads);
                         });

TEST(ExecutorThreads, AnyNumberOfThreadsGivesTheSameBits) {
  const ModelConfig model = tiny_model(false);
  const auto weights = random_weights(model, 3);
  std::vector<std::vector<std::int32_t>> outputs;
  for (const int threads : {1, 2, 3, 5}) {
    CpuExecutorOptions options;
    options.isa = kernels::best_isa();
    options.threads = threads;
    options.kv_blocks = kBlocks;
    options.block_tokens = kBlockTokens;
    CpuExecutor executor(model, *weights, options);
    outputs.push_back(generate(&executor, {1, 2, 3, 4, 5}, nullptr, Exec::kUnmerged, 40, {}));
    EXPECT_EQ(outputs.back(), outputs.front()) << threads << " threads";
  }
}

TEST(ExecutorMemory, APlanThatTheMachineCannotHoldIsRefused) {
  const ModelConfig model = tiny_model(false);
  CpuExecutorOptions options;
  options.kv_blocks = std::int64_t{1} << 40;
  EXPECT_THROW(CpuExecutor(model, *random_weights(model, 1), options), SpecError);
}

}  // namespace
}  // namespace servelab
