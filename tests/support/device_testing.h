// A small model on any engine's device, and the words in which tests talk to one.
#ifndef SERVELAB_TESTS_SUPPORT_DEVICE_TESTING_H_
#define SERVELAB_TESTS_SUPPORT_DEVICE_TESTING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/cpu/cpu_device.h"
#include "engine/backend/device/device.h"
#include "engine/core/rng.h"

namespace servelab::test {

inline constexpr int kBlocks = 64;
inline constexpr int kBlockTokens = 4;
inline constexpr DeviceLimits kSmallLimits = {kBlocks, kBlockTokens, 16, 200};
inline constexpr LoraKernel kAllLoraKernels[] = {LoraKernel::kBgmv, LoraKernel::kMbgmv,
                                                 LoraKernel::kSgmv, LoraKernel::kEinsum};

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

// The reference: the CPU engine in f32.
inline std::unique_ptr<CpuDevice> cpu_device(const ModelConfig& model, const ModelWeights& weights,
                                             const DeviceLimits& limits = kSmallLimits) {
  CpuDeviceOptions options;
  static_cast<DeviceLimits&>(options) = limits;
  options.type = kernels::DType::kF32;
  options.isa = kernels::best_isa();
  return std::make_unique<CpuDevice>(model, weights, options);
}

inline std::vector<std::int32_t> prompt(const ModelConfig& model, int tokens, std::uint64_t seed) {
  RngStream rng(seed, "prompt");
  std::vector<std::int32_t> ids;
  for (int i = 0; i < tokens; ++i) {
    ids.push_back(static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(model.vocab))));
  }
  return ids;
}

inline std::vector<std::int32_t> but_last(const std::vector<std::int32_t>& ids) {
  return {ids.begin(), ids.end() - 1};
}

inline std::vector<BlockIndex> blocks(int first, int count) {
  std::vector<BlockIndex> list(static_cast<std::size_t>(count));
  std::iota(list.begin(), list.end(), first);
  return list;
}

// The first, second, ... adapter of a test.
constexpr AdapterId nth(std::size_t i) { return static_cast<AdapterId>(i); }

// What of `ids` comes after the first `context`, which are in the cache.
inline Sequence sequence(const std::vector<std::int32_t>& ids, std::size_t context,
                         const std::vector<BlockIndex>& table, AdapterId adapter = kBaseModel,
                         LoraSite lora = LoraSite::kDevice) {
  Sequence made;
  made.context = static_cast<std::int32_t>(context);
  made.tokens.assign(ids.begin() + made.context, ids.end());
  made.blocks = table;
  made.adapter = adapter;
  made.lora = lora;
  made.samples = true;
  return made;
}

inline DeviceResult run_job(Device* device, DeviceJob job) {
  job.wants_logits = true;
  DeviceResult result;
  device->run(job, &result);
  return result;
}

// Logits of one step, of sequences that all sample.
inline std::vector<float> run(Device* device, std::vector<Sequence> sequences,
                              const StepMode& mode) {
  DeviceJob job;
  job.mode = mode;
  job.sequences = std::move(sequences);
  DeviceResult result = run_job(device, job);
  EXPECT_EQ(result.sampled.size(), job.sequences.size());
  return std::move(result.logits);
}
inline std::vector<float> run(Device* device, std::vector<Sequence> sequences,
                              Exec exec = Exec::kUnmerged, LoraKernel kernel = LoraKernel::kSgmv) {
  return run(device, std::move(sequences), StepMode{exec, kernel});
}

// Logits after the last token of `ids`, computed in chunks.
inline std::vector<float> prefill(Device* device, const std::vector<std::int32_t>& ids,
                                  std::size_t chunk, const std::vector<BlockIndex>& table,
                                  AdapterId adapter = kBaseModel, LoraSite lora = LoraSite::kDevice,
                                  Exec exec = Exec::kUnmerged) {
  DeviceResult result;
  for (std::size_t at = 0; at < ids.size(); at += chunk) {
    DeviceJob job;
    job.mode = {exec, LoraKernel::kSgmv};
    const auto end = ids.begin() + static_cast<std::ptrdiff_t>(std::min(at + chunk, ids.size()));
    job.sequences = {sequence({ids.begin(), end}, at, table, adapter, lora)};
    job.sequences.front().samples = end == ids.end();
    result = run_job(device, job);
  }
  return std::move(result.logits);
}
inline std::vector<float> prefill_merged(Device* device, const std::vector<std::int32_t>& ids,
                                         const std::vector<BlockIndex>& table) {
  return prefill(device, ids, 200, table, kBaseModel, LoraSite::kDevice, Exec::kMerged);
}

inline void load(Device* device, AdapterId adapter, std::shared_ptr<const LoraWeights> weights,
                 int width = 0) {
  device->load({adapter, width}, std::move(weights));
  device->wait(adapter);
}

inline void merge(Device* device, AdapterId adapter) {
  DeviceJob job;
  job.merge = adapter;
  run_job(device, job);
}
inline void unmerge(Device* device) {
  DeviceJob job;
  job.unmerge = true;
  run_job(device, job);
}

// A context on its way, before a step or in a job of its own.
inline KvMove out_of(const std::vector<BlockIndex>& table, int tokens, std::uint32_t request = 0) {
  return {RequestId{request}, true, tokens, table};
}
inline KvMove into(const std::vector<BlockIndex>& table, int tokens, std::uint32_t request = 0) {
  return {RequestId{request}, false, tokens, table};
}
inline void move(Device* device, const std::vector<KvMove>& moves) {
  DeviceJob job;
  job.moves = moves;
  run_job(device, job);
}

// A device to which the adapter that a job holds on the host comes before a chosen layer, once.
template <class Engine>
class ComesBefore final : public Engine {
 public:
  using Engine::Engine;
  void before(int layer, std::function<void(AdapterId)> bring) {
    asked_ = 0;
    layer_ = layer;
    bring_ = std::move(bring);
  }

 private:
  const DeviceAdapter* arrived(AdapterId adapter) override {
    if (asked_++ < layer_) return nullptr;
    if (bring_) std::exchange(bring_, nullptr)(adapter);
    return Engine::arrived(adapter);
  }
  int asked_ = 0, layer_ = 0;
  std::function<void(AdapterId)> bring_;
};

}  // namespace servelab::test

#endif  // SERVELAB_TESTS_SUPPORT_DEVICE_TESTING_H_
