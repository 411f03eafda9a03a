// The CPU engine's forward pass: what must hold bit for bit (chunking, batching, threads, kernels,
// swapping, returning from a merge) and what within a tolerance (merged against unmerged).
#include "engine/backend/cpu/cpu_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/cli/generate.h"
#include "engine/core/check.h"
#include "tests/support/device_testing.h"
#include "tests/support/lora_workers.h"

namespace servelab {
namespace {

using namespace test;  // NOLINT: the tests' own words
using kernels::DType;
using kernels::Isa;

ModelConfig odd_model(bool bias) {
  ModelConfig model = small_model();
  model.hidden = 64;
  model.heads = 4;
  model.kv_heads = 2;
  model.head_dim = 16;
  model.ffn = 88;
  model.qkv_bias = bias;
  return model;
}

constexpr int kRanks[] = {4, 8, 16, 64};

struct Setting {
  Isa isa;
  DType type;
  int threads;
};

// Every way in which LoRA on the host can be computed; a few rows each, so that a prompt is shared.
std::vector<HostLoraPlan> host_lora_plans() {
  std::vector<HostLoraPlan> plans;
  plans.emplace_back();
  for (const int workers : {1, 3}) {
    plans.push_back(test::lora_workers(HostLoraBy::kThreads, workers));
  }
  plans.push_back(test::lora_workers(HostLoraBy::kProcesses, 2));
  plans.push_back(test::lora_workers(HostLoraBy::kProcesses, 2, HostLoraTransport::kSockets));
  return plans;
}

std::string words(const HostLoraPlan& plan) {
  return std::to_string(plan.workers) + " " + kHostLoraBy[static_cast<std::size_t>(plan.by)] +
         ", " + kHostLoraTransports[static_cast<std::size_t>(plan.transport)];
}

class CpuDevices : public ::testing::TestWithParam<Setting> {
 protected:
  CpuDevices() : model_(odd_model(true)), weights_(random_weights(model_, 7)) {
    device_ = std::make_unique<CpuDevice>(model_, *weights_, options());
    hold(device_.get());
  }
  static CpuDeviceOptions options(const HostLoraPlan& host_lora = {}) {
    CpuDeviceOptions options;
    static_cast<DeviceLimits&>(options) = kSmallLimits;
    options.isa = GetParam().isa;
    options.type = GetParam().type;
    options.threads = GetParam().threads;
    options.host_lora = host_lora;
    return options;
  }
  void hold(CpuDevice* device) const {
    for (std::size_t i = 0; i < std::size(kRanks); ++i) {
      const auto seed = static_cast<std::uint64_t>(kRanks[i]);
      const auto weights = random_adapter(model_, "a", kRanks[i], all_targets(), seed);
      load(device, nth(i), weights, 64);
      device->hold({nth(i)}, weights);
    }
  }
  // Of a batch's logits.
  std::vector<float> row(const std::vector<float>& logits, std::size_t i) const {
    const auto vocab = static_cast<std::ptrdiff_t>(model_.vocab);
    const auto from = logits.begin() + static_cast<std::ptrdiff_t>(i) * vocab;
    return {from, from + vocab};
  }

  const ModelConfig model_;
  const std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<CpuDevice> device_;
};

TEST_P(CpuDevices, AdaptersChangeTheOutput) {
  const auto ids = prompt(model_, 20, 1);
  const auto base = prefill(device_.get(), ids, 64, blocks(0, 8));
  for (std::size_t a = 0; a < std::size(kRanks); ++a) {
    const auto adapted = prefill(device_.get(), ids, 64, blocks(0, 8), nth(a));
    double difference = 0;
    for (std::size_t i = 0; i < base.size(); ++i) {
      ASSERT_TRUE(std::isfinite(adapted[i]));
      difference = std::max<double>(difference, std::abs(base[i] - adapted[i]));
    }
    EXPECT_GT(difference, 0.01);
  }
}

// Prompts and decodes of every rank, in one batch with the same adapters on the device, under every
// kernel: what the host computes, by whomever, is what the device computes, bit for bit.
TEST_P(CpuDevices, AdaptersOnTheHostGiveTheSameBits) {
  std::vector<std::vector<float>> on_device;
  const auto ids = prompt(model_, 9, 3);
  for (std::size_t a = 0; a < std::size(kRanks); ++a) {
    on_device.push_back(prefill(device_.get(), ids, 8, blocks(0, 3), nth(a)));
  }
  for (const HostLoraPlan& plan : host_lora_plans()) {
    CpuDevice device(model_, *weights_, options(plan));
    hold(&device);
    for (std::size_t a = 0; a < std::size(kRanks); ++a) {
      EXPECT_EQ(prefill(&device, ids, 8, blocks(0, 3), nth(a), LoraSite::kHost), on_device[a])
          << words(plan);
    }
    for (const LoraKernel kernel : kAllLoraKernels) {
      // Four sequences on the host, four on the device: all but the last token, then that one.
      const auto batch = [&](const std::vector<std::int32_t>& tokens, std::size_t context) {
        std::vector<Sequence> sequences;
        for (std::size_t i = 0; i < 8; ++i) {
          sequences.push_back(sequence(tokens, context, blocks(3 * static_cast<int>(i), 3),
                                       nth(i % 4), i < 4 ? LoraSite::kHost : LoraSite::kDevice));
        }
        return run(&device, sequences, Exec::kUnmerged, kernel);
      };
      batch(but_last(ids), 0);
      const auto logits = batch(ids, ids.size() - 1);
      for (std::size_t i = 0; i < 8; ++i) {
        EXPECT_EQ(row(logits, i), on_device[i % 4])
            << name(kernel) << " row " << i << ", " << words(plan);
      }
    }
  }
}

// Whichever layer the device takes a prompt's or a decode's LoRA over at, the bits are the same.
TEST_P(CpuDevices, TheDeviceMayTakeOverAtAnyLayer) {
  const auto weights = random_adapter(model_, "a", 16, all_targets(), 16);
  const auto ids = prompt(model_, 9, 3);
  const auto expected = prefill(device_.get(), ids, 8, blocks(0, 3), nth(2));
  for (const HostLoraPlan& plan : host_lora_plans()) {
    ComesBefore<CpuDevice> device(model_, *weights_, options(plan));
    device.hold({nth(0)}, weights);
    for (const TakeOver mode : {TakeOver::kNever, TakeOver::kLoaded, TakeOver::kLayers}) {
      for (int layer = 0; layer <= model_.layers; ++layer) {
        bool brought = false;
        const int begun = mode == TakeOver::kNever ? model_.layers : layer;
        for (const std::size_t chunk :
             {std::size_t{8}, std::size_t{1}}) {  // a prompt, then a decode
          device.before(layer, [&](AdapterId adapter) {
            load(&device, adapter, weights, 64);
            brought = true;
          });
          DeviceJob job;
          job.mode.kernel = LoraKernel::kBgmv;
          job.mode.take_over = mode;
          const std::size_t at = chunk == 8 ? 0 : 8;
          const auto end = ids.begin() + static_cast<std::ptrdiff_t>(at + chunk);
          job.sequences = {sequence({ids.begin(), end}, at, blocks(0, 3), nth(0), LoraSite::kHost)};
          job.sequences.front().samples = true;
          const DeviceResult result = run_job(&device, job);
          EXPECT_EQ(result.host_layers, begun);
          if (chunk == 1) {
            EXPECT_EQ(result.logits, expected)
                << name(mode) << ", layer " << layer << ", " << words(plan);
          }
          EXPECT_EQ(brought, mode != TakeOver::kNever && layer < model_.layers);
          if (brought) device.evict(nth(0));
          brought = false;
        }
      }
    }
  }
}

TEST_P(CpuDevices, ChunkedPrefillIsBitForBitTheWhole) {
  const auto ids = prompt(model_, 77, 2);
  for (const AdapterId adapter : {kBaseModel, nth(2)}) {
    const auto whole = prefill(device_.get(), ids, 200, blocks(0, 20), adapter);
    for (const std::size_t chunk : {1u, 7u, 16u, 64u, 76u}) {
      EXPECT_EQ(prefill(device_.get(), ids, chunk, blocks(20, 20), adapter), whole)
          << "chunk " << chunk;
    }
  }
}

// Seven sequences, decodes and prefills, base and adapters, in one batch under every kernel.
TEST_P(CpuDevices, ARowIsBitForBitTheSameInAnyBatch) {
  std::vector<std::vector<std::int32_t>> ids;
  std::vector<AdapterId> adapters;
  std::vector<std::vector<float>> alone;
  for (std::size_t i = 0; i < 7; ++i) {
    ids.push_back(prompt(model_, 3 + 5 * static_cast<int>(i), 10 + i));
    adapters.push_back(i < 2 ? kBaseModel : nth(i % 4));
    alone.push_back(prefill(device_.get(), ids[i], 200, blocks(0, 9), adapters[i]));
  }
  for (const LoraKernel kernel : kAllLoraKernels) {
    std::vector<Sequence> sequences;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto table = blocks(static_cast<int>(i) * 9, 9);
      const std::size_t earlier = i % 2 == 0 ? 0 : ids[i].size() - 1;  // every other one decodes
      if (earlier > 0) prefill(device_.get(), but_last(ids[i]), 200, table, adapters[i]);
      sequences.push_back(sequence(ids[i], earlier, table, adapters[i]));
    }
    const auto together = run(device_.get(), sequences, Exec::kUnmerged, kernel);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(row(together, i), alone[i]) << name(kernel) << ", sequence " << i;
    }
  }
}

TEST_P(CpuDevices, MergedAgreesWithUnmergedAndUnmergingRestoresEveryBit) {
  const auto ids = prompt(model_, 40, 3);
  const auto base = prefill(device_.get(), ids, 200, blocks(0, 20));
  const double tolerance = GetParam().type == DType::kF32 ? 2e-4 : 0.06;
  for (std::size_t a = 0; a < std::size(kRanks); ++a) {
    const auto unmerged = prefill(device_.get(), ids, 200, blocks(0, 20), nth(a));
    merge(device_.get(), nth(a));
    const auto merged = prefill_merged(device_.get(), ids, blocks(0, 20));
    unmerge(device_.get());
    float largest = 0;
    for (const float value : unmerged) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < merged.size(); ++i) {
      ASSERT_NEAR(merged[i], unmerged[i], tolerance * largest) << "rank " << kRanks[a];
    }
    EXPECT_NE(merged, base);
    EXPECT_EQ(prefill(device_.get(), ids, 200, blocks(0, 20)), base);
  }
}

TEST_P(CpuDevices, AFoldedCopyIsTheMergedModelAndLeavesTheBaseAlone) {
  const auto ids = prompt(model_, 30, 6);
  const auto base = prefill(device_.get(), ids, 200, blocks(0, 8));
  const auto weights = random_adapter(model_, "a", kRanks[1], all_targets(), 8);
  device_->load({nth(9), 0, true}, weights);
  merge(device_.get(), nth(1));
  const auto merged = prefill_merged(device_.get(), ids, blocks(0, 8));
  unmerge(device_.get());
  DeviceJob job;
  job.folded = nth(9);
  job.sequences = {sequence(ids, 0, blocks(0, 8))};
  EXPECT_EQ(run_job(device_.get(), job).logits, merged);
  EXPECT_EQ(prefill(device_.get(), ids, 200, blocks(0, 8)), base);
}

TEST_P(CpuDevices, AContextCanBeSwappedOutAndInElsewhere) {
  auto ids = prompt(model_, 30, 4);
  prefill(device_.get(), ids, 200, blocks(0, 8), nth(1));
  ids.push_back(5);
  move(device_.get(), {out_of(blocks(0, 8), 30)});
  const auto decode = [&](const std::vector<BlockIndex>& table) {
    return run(device_.get(), {sequence(ids, 30, table, nth(1))}, Exec::kUnmerged,
               LoraKernel::kBgmv);
  };
  const auto stayed = decode(blocks(0, 8));
  prefill(device_.get(), prompt(model_, 32, 99), 200, blocks(0, 8));  // someone else's blocks now
  const std::vector<BlockIndex> elsewhere = {40, 12, 33, 50, 13, 41, 63, 20};
  move(device_.get(), {into(elsewhere, 30)});
  EXPECT_EQ(decode(elsewhere), stayed);
}

TEST_P(CpuDevices, SamplingIsSeededAndGreedyInTheLimit) {
  const auto ids = prompt(model_, 12, 5);
  SamplingOptions greedy;
  SamplingOptions warm{1.0, 1.0, 1};
  SamplingOptions narrow{1.0, 1e-6, 1};
  const auto sample = [&](const SamplingOptions& sampling) {
    return generate(device_.get(), ids, nth(0), Exec::kUnmerged, 24, sampling);
  };
  EXPECT_EQ(sample(greedy), sample(narrow));
  EXPECT_EQ(sample(warm), sample(warm));
  EXPECT_NE(sample(warm), sample(greedy));
  SamplingOptions other = warm;
  other.seed = 2;
  EXPECT_NE(sample(warm), sample(other));
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const DType type : {DType::kF32, DType::kBf16}) {
    all.push_back({Isa::kReference, type, 1});
    for (const Isa isa : {Isa::kAvx2, Isa::kAvx512Bf16, Isa::kAvx512Bf16Dot}) {
      if (!kernels::supported(isa)) continue;
      for (const int threads : {1, 2, 3}) all.push_back({isa, type, threads});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, CpuDevices, ::testing::ValuesIn(settings()),
                         [](const ::testing::TestParamInfo<Setting>& info) {
                           std::string text = kernels::ops(info.param.isa).name;
                           std::replace(text.begin(), text.end(), '-', '_');
                           return text + "_" + kernels::name(info.param.type) + "_" +
                                  std::to_string(info.param.threads);
                         });

TEST(CpuDeviceThreads, AnyNumberOfThreadsGivesTheSameBits) {
  const ModelConfig model = odd_model(false);
  const auto weights = random_weights(model, 3);
  std::vector<std::vector<std::int32_t>> outputs;
  for (const int threads : {1, 2, 3, 5}) {
    CpuDeviceOptions options;
    static_cast<DeviceLimits&>(options) = kSmallLimits;
    options.isa = kernels::best_isa();
    options.threads = threads;
    CpuDevice device(model, *weights, options);
    outputs.push_back(generate(&device, {1, 2, 3, 4, 5}, kBaseModel, Exec::kUnmerged, 40, {}));
    EXPECT_EQ(outputs.back(), outputs.front()) << threads << " threads";
  }
}

TEST(CpuDeviceMemory, APlanThatTheMachineCannotHoldIsRefused) {
  const ModelConfig model = odd_model(false);
  CpuDeviceOptions options;
  options.kv_blocks = std::int64_t{1} << 40;
  EXPECT_THROW(CpuDevice(model, *random_weights(model, 1), options), SpecError);
}

// Weights whose q, k and v are stored in different types.
class MixedTypes final : public ModelWeights {
 public:
  explicit MixedTypes(const ModelWeights& weights) : weights_(weights) {}
  Tensor linear(int layer, LinearLayer which) const override {
    const Tensor tensor = weights_.linear(layer, which);
    return which == LinearLayer::kK ? widened(tensor) : tensor;
  }
  Tensor vector(int layer, LayerVector which) const override {
    return weights_.vector(layer, which);
  }
  Tensor tensor(ModelTensor which) const override { return weights_.tensor(which); }
  DType type() const override { return DType::kF32; }

 private:
  static Tensor widened(Tensor tensor) {
    const auto count =
        static_cast<std::size_t>(tensor.rows) * static_cast<std::size_t>(tensor.columns);
    const std::shared_ptr<float[]> values(new float[count]);
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = kernels::to_float(static_cast<const kernels::Bf16*>(tensor.data)[i]);
    }
    tensor.type = DType::kF32;
    tensor.data = values.get();
    tensor.owner = values;
    return tensor;
  }

  const ModelWeights& weights_;
};

TEST(CpuDeviceTypes, MatricesOfOneProjectionMayBeStoredInSeveral) {
  const ModelConfig model = odd_model(true);
  const auto weights = random_weights(model, 7);
  CpuDeviceOptions options;
  static_cast<DeviceLimits&>(options) = kSmallLimits;
  options.type = DType::kF32;
  options.threads = 2;
  const auto logits = [&](const ModelWeights& stored) {
    CpuDevice device(model, stored, options);
    std::vector<float> out;
    generate(&device, {1, 5, 9}, kBaseModel, Exec::kUnmerged, 2, {}, &out);
    return out;
  };
  EXPECT_EQ(logits(MixedTypes(*weights)), logits(*weights));
}

}  // namespace
}  // namespace servelab
