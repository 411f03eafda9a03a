// A small model on the CUDA engine and, in f32, on the CPU engine, which is the reference.
#ifndef SERVELAB_TESTS_CUDA_ENGINE_ENGINE_TESTING_H_
#define SERVELAB_TESTS_CUDA_ENGINE_ENGINE_TESTING_H_

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "engine/backend/cuda/cuda_device.h"
#include "engine/core/check.h"
#include "tests/support/device_testing.h"

namespace servelab::test {

using kernels::DType;

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

// Logits of a prefill and of decodes after it, often enough to be recorded, each step at the next
// of `shares` of the device.
inline std::vector<std::vector<float>> generate(Device* device, AdapterId adapter,
                                                const std::vector<double>& shares,
                                                LoraSite lora = LoraSite::kDevice) {
  std::vector<std::vector<float>> all;
  std::vector<std::int32_t> ids = prompt(device->model(), 20, 1);
  std::size_t context = 0;
  for (int step = 0; step < 8; ++step) {
    DeviceJob job;
    job.mode.device_share = shares[static_cast<std::size_t>(step) % shares.size()];
    job.sequences = {sequence(ids, context, blocks(0, 20), adapter, lora)};
    DeviceResult result = run_job(device, job);
    all.push_back(std::move(result.logits));
    context = ids.size();
    ids.push_back(result.sampled.front());
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

// The CPU engine and the CUDA engine with the same weights and adapters 0 to 3, of ranks 4, 8, 16
// and 64, where the plan has room for them.
struct Engines {
  explicit Engines(const DevicePlan& plan, int width = 64)
      : model(small_model()),
        weights(random_weights(model, 7)),
        cpu(cpu_device(model, *weights, plan.limits)),
        cuda(std::make_unique<cuda::CudaDevice>(model, *weights, plan)) {
    for (const int rank : {4, 8, 16, 64}) {
      const AdapterId id = nth(lora.size());
      lora.push_back(
          random_adapter(model, "a", rank, all_targets(), static_cast<std::uint64_t>(rank)));
      load(cpu.get(), id, lora.back());
      if (static_cast<int>(lora.size()) > plan.adapters || plan.folded) continue;
      cuda->load({id, width}, lora.back());
    }
  }
  // What has to be there before a step can be a graph.
  void wait() const {
    for (std::size_t i = 0; i < lora.size(); ++i) cuda->wait(nth(i));
  }
  // Every adapter a second time, on the host.
  void hold() const {
    for (std::size_t i = 0; i < lora.size(); ++i) cuda->hold({nth(i), 64}, lora[i]);
  }

  const ModelConfig model;
  const std::unique_ptr<ModelWeights> weights;
  const std::unique_ptr<CpuDevice> cpu;
  const std::unique_ptr<cuda::CudaDevice> cuda;
  std::vector<std::shared_ptr<const LoraWeights>> lora;
};

}  // namespace servelab::test

#endif  // SERVELAB_TESTS_CUDA_ENGINE_ENGINE_TESTING_H_
