// The CUDA engine, where it is built in.
#include "engine/backend/device/accelerator.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include "engine/backend/cuda/cuda_device.h"
#include "engine/backend/cuda/sm_shares.h"
#include "engine/backend/device/tensor_parallel.h"
#include "engine/backend/device/thread_team.h"

namespace servelab::cuda {
namespace {

// Ranks that are threads of this process.
std::vector<MakeRank> thread_ranks(const ModelConfig& model, const ModelWeights& weights,
                                   const DevicePlan& plan) {
  std::vector<MakeRank> makers;
  int rank = 0;
  for (std::unique_ptr<Collective>& each : make_collectives(plan.ranks, plan.device)) {
    DevicePlan own = plan;
    own.device = plan.device + rank;
    if (!plan.partitions.empty()) {
      own.partitions = {plan.partitions[static_cast<std::size_t>(rank)]};
    }
    const RankSeat seat{{rank, plan.ranks}, std::move(each)};
    makers.emplace_back([&model, &weights, own, seat] {
      return std::make_unique<CudaDevice>(model, weights, own, seat);
    });
    ++rank;
  }
  return makers;
}

class CudaAccelerator final : public Accelerator {
 public:
  int devices() const override {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
      throw SpecError("backend 'cuda': this machine has no CUDA device (cudaGetDeviceCount: " +
                      std::string(error == cudaSuccess ? "0 devices" : cudaGetErrorString(error)) +
                      "); use backend: twin or backend: cpu");
    }
    return count;
  }

  std::string summary() const override { return "an NVIDIA GPU"; }

  void check_devices(int replicas, int ranks) const override {
    const int there = devices();
    if (replicas * ranks <= there) return;
    throw SpecError("cluster: replicas and tensor_parallel ask for " +
                    std::to_string(replicas * ranks) +
                    " devices, one for each, and this machine has " + std::to_string(there));
  }

  std::string profile_stem(int /*threads*/) const override { return facts(0).name; }

  bool loads_by_layer() const override { return true; }

  ElementTypes element_types() const override {
    return {{kernels::DType::kBf16, kernels::DType::kF16}, kernels::DType::kBf16};
  }

  // Workers of each device for LoRA on the host, and their cores where each has one of its own:
  // replica after replica, device after device. A core of each share stays with the thread that
  // launches the device's work.
  void share_host(int replica, const HostShares& shares, DevicePlan* plan) const override {
    const std::vector<int> cores = usable_cores();
    const int all = shares.replicas * plan->ranks;
    HostLoraPlan& lora = plan->lora;
    lora = shares.lora;
    if (shares.lora_by_engine) lora.by = HostLoraBy::kThreads;
    if (lora.by == HostLoraBy::kInline || lora.transport == HostLoraTransport::kSockets) {
      throw SpecError(
          "runtime.host_lora: the CUDA engine's host computes LoRA beside the device, by threads "
          "or by processes that share its memory");
    }
    if (lora.workers == 0) lora.workers = std::max(1, static_cast<int>(cores.size()) / all - 1);
    const int wanted = lora.workers * all;
    if (shares.host_lora) check_cores(lora, wanted, static_cast<int>(cores.size()));
    lora.shares_cores = wanted > static_cast<int>(cores.size());
    if (!shares.pin || lora.shares_cores) return;
    const auto first = cores.begin() + lora.workers * plan->ranks * replica;
    lora.cores.assign(first, first + lora.workers * plan->ranks);
  }

  DeviceFacts facts(int device) const override {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device), "asking for the device's properties");
    DeviceFacts facts;
    facts.name = properties.name;
    facts.generation = properties.major >= 9 ? "hopper" : "ampere";
    facts.memory = static_cast<Bytes>(properties.totalGlobalMem);
    facts.multiprocessors = properties.multiProcessorCount;
    facts.l2 = properties.l2CacheSize;
    return facts;
  }

  std::shared_ptr<DevicePartition> partition(int device) const override {
    devices();
    check(cudaSetDevice(device), "choosing the device");
    return std::make_shared<SmShares>(make_sm_groups(device));
  }

  std::unique_ptr<Device> make(const ModelConfig& model, const ModelWeights& weights,
                               const DevicePlan& plan) const override {
    const int there = devices();
    if (plan.device + plan.ranks > there) {
      throw SpecError(
          "cluster: replicas * tensor_parallel devices are needed, one for each, and "
          "this machine has " +
          std::to_string(there));
    }
    if (plan.ranks == 1) return std::make_unique<CudaDevice>(model, weights, plan);
    return std::make_unique<TensorParallelDevice>(model, plan.limits,
                                                  thread_ranks(model, weights, plan), nullptr);
  }

  std::string name_group() const override { return cuda::name_group(); }

  std::unique_ptr<Device> make_rank(const ModelConfig& model, const ModelWeights& weights,
                                    const DevicePlan& plan, const Shard& shard,
                                    const std::string& group) const override {
    RankSeat seat{shard, nullptr};
    if (shard.ranks > 1) {
      try {
        seat.collective = join_group(group, shard, plan.device);
      } catch (const SpecError& problem) {
        throw GroupError(problem.what());
      }
    }
    return std::make_unique<CudaDevice>(model, weights, plan, seat);
  }
};

[[maybe_unused]] const bool registered = Registry<BackendKind>::instance().add(
    "cuda", [] { return std::make_unique<CudaAccelerator>(); });

}  // namespace
}  // namespace servelab::cuda
