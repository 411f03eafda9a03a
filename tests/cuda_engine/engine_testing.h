// A small model on the CUDA engine and, in f32, on the CPU engine, which is the reference.
#ifndef SERVELAB_TESTS_CUDA_ENGINE_ENGINE_TESTING_H_
#define SERVELAB_TESTS_CUDA_ENGINE_ENGINE_TESTING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "engine/backend/cpu/executor.h"
#include "engine/backend/cuda/cuda_executor.h"
#include "engine/core/check.h"
#include "engine/core/rng.h"

namespace servelab::test {

using kernels::DType;

inline constexpr int kBlocks = 64;
inline constexpr int kBlockTokens = 4;

inline ModelConfig small_model() {
  ModelConfig model;
  model.name = "small";
  model.layers = 3;
  model.hidden = 128;
  model.heads = 2;
  model.kv_heads = 1;
  model.head_dim = 64;
  model.ffn = 192;
  model.vocab = 101;
  model.qkv_bias = true;
  model.max_context_tokens = kBlocks * kBlockTokens;
  model.source = "test";
  return model;
}

inline const std::vector<std::string>& all_targets() {
  static const std::vector<std::string> kTargets = {"q", "k", "v", "o", "gate", "up", "down"};
  return kTargets;
}

// Whether kernels can be recorded as graphs here; each program says so for its device.
bool device_records();

inline DevicePlan small_plan(DType type) {
  DevicePlan plan;
  plan.graphs = device_records();
  plan.type = type;
  plan.limits = {kBlocks, kBlockTokens, 12, 200};
  for (int i = 0; i < kLinearLayers; ++i) plan.targets.push_back(static_cast<LinearLayer>(i));
  plan.adapters = 4;
  plan.widest_rank = 64;
  plan.merges = true;
  return plan;
}

// Why no test of the engine can run here, or empty.
inline std::string no_device() {
  try {
    find_accelerator("cuda")->devices();
    return "";
  } catch (const SpecError& error) {
    return error.what();
  }
}

inline std::vector<std::int32_t> prompt(const ModelConfig& model, int tokens, std::uint64_t seed) {
  RngStream rng(seed, "prompt");
  std::vector<std::int32_t> ids;
  for (int i = 0; i < tokens; ++i) {
    ids.push_back(static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(model.vocab))));
  }
  return ids;
}

inline std::vector<BlockIndex> blocks(int first, int count) {
  std::vector<BlockIndex> list(static_cast<std::size_t>(count));
  std::iota(list.begin(), list.end(), first);
  return list;
}

// One sequence of a batch, which keeps what a slice points to.
struct Part {
  std::vector<std::int32_t> ids;  // all of its tokens so far
  std::size_t context = 0;        // of which these are in the cache
  std::vector<BlockIndex> table;
  const DeviceAdapter* adapter = nullptr;

  SequenceSlice slice(bool samples = true) const {
    SequenceSlice slice;
    slice.context = static_cast<std::int32_t>(context);
    slice.tokens = std::span(ids).subspan(context);
    slice.blocks = table;
    slice.adapter = adapter;
    slice.samples = samples;
    return slice;
  }
};

inline std::vector<float> run(Executor* executor, const std::vector<Part>& parts,
                              const RunMode& mode) {
  std::vector<SequenceSlice> slices;
  for (const Part& part : parts) slices.push_back(part.slice());
  std::vector<std::int32_t> sampled;
  executor->run(slices, mode, {}, &sampled);
  EXPECT_EQ(sampled.size(), parts.size());
  const auto logits = executor->logits();
  return {logits.begin(), logits.end()};
}

inline std::vector<float> run(Executor* executor, const std::vector<Part>& parts,
                              Exec exec = Exec::kUnmerged, LoraKernel kernel = LoraKernel::kSgmv) {
  return run(executor, parts, StepMode{exec, kernel});
}

// Logits after the last token of `ids`, computed in chunks.
inline std::vector<float> prefill(Executor* executor, const std::vector<std::int32_t>& ids,
                                  std::size_t chunk, const DeviceAdapter* adapter,
                                  const std::vector<BlockIndex>& table,
                                  Exec exec = Exec::kUnmerged) {
  std::vector<std::int32_t> sampled;
  for (std::size_t at = 0; at < ids.size(); at += chunk) {
    SequenceSlice slice;
    slice.context = static_cast<std::int32_t>(at);
    slice.tokens = std::span(ids).subspan(at, std::min(chunk, ids.size() - at));
    slice.blocks = table;
    slice.adapter = adapter;
    slice.samples = at + chunk >= ids.size();
    executor->run({&slice, 1}, {exec, LoraKernel::kSgmv}, {}, &sampled);
  }
  const auto logits = executor->logits();
  return {logits.begin(), logits.end()};
}

// Logits of a prefill and of decodes after it, often enough to be recorded, each step at the next
// of `shares` of the device.
inline std::vector<std::vector<float>> generate(Executor* executor, const DeviceAdapter* adapter,
                                                const std::vector<double>& shares) {
  std::vector<std::vector<float>> all;
  Part part;
  part.ids = prompt(executor->model(), 20, 1);
  part.table = blocks(0, 20);
  part.adapter = adapter;
  for (int step = 0; step < 8; ++step) {
    const SequenceSlice slice = part.slice();
    RunMode mode;
    mode.device_share = shares[static_cast<std::size_t>(step) % shares.size()];
    std::vector<std::int32_t> sampled;
    executor->run({&slice, 1}, mode, {}, &sampled);
    const auto logits = executor->logits();
    all.emplace_back(logits.begin(), logits.end());
    part.context = part.ids.size();
    part.ids.push_back(sampled.front());
  }
  return all;
}

// Largest difference as a share of the largest expected value; infinite where one is not a number.
inline double difference(const std::vector<float>& got, const std::vector<float>& expected) {
  if (got.size() != expected.size() || got.empty()) return INFINITY;
  double worst = 0;
  double largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i])) return INFINITY;
    worst = std::max<double>(worst, std::abs(got[i] - expected[i]));
    largest = std::max<double>(largest, std::abs(expected[i]));
  }
  return worst / largest;
}

// Rounding of weights' products and activations, seen at the logits of three layers.
inline double tolerance(DType type) { return type == DType::kBf16 ? 0.03 : 0.004; }

// Both engines with the same weights and adapters of ranks 4, 8, 16 and 64.
struct Engines {
  explicit Engines(const DevicePlan& plan, int width = 64)
      : model(small_model()), weights(random_weights(model, 7)) {
    CpuExecutorOptions options;
    static_cast<ExecutorLimits&>(options) = plan.limits;
    options.type = DType::kF32;
    options.isa = kernels::best_isa();
    cpu = std::make_unique<CpuExecutor>(model, *weights, options);
    cuda = std::make_unique<cuda::CudaExecutor>(model, *weights, plan);
    for (const int rank : {4, 8, 16, 64}) {
      lora.push_back(
          random_adapter(model, "a", rank, all_targets(), static_cast<std::uint64_t>(rank)));
      if (static_cast<int>(lora.size()) > plan.adapters || plan.whole_models) continue;
      on_cpu.push_back(cpu->pack_adapter(*lora.back(), 0));
      on_cuda.push_back(cuda->pack_adapter(*lora.back(), width));
    }
  }

  ModelConfig model;
  std::unique_ptr<ModelWeights> weights;
  std::unique_ptr<CpuExecutor> cpu;
  std::unique_ptr<cuda::CudaExecutor> cuda;
  std::vector<std::shared_ptr<const LoraWeights>> lora;
  std::vector<std::unique_ptr<DeviceAdapter>> on_cpu, on_cuda;
};

}  // namespace servelab::test

#endif  // SERVELAB_TESTS_CUDA_ENGINE_ENGINE_TESTING_H_
