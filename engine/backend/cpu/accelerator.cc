// The CPU engine among the engines: the device is the host, whose cores its replicas share out.
#include "engine/backend/device/accelerator.h"

#include <unistd.h>

#include <algorithm>
#include <climits>

#include "engine/backend/cpu/cpu_device.h"
#include "engine/backend/cpu/kernel_choice.h"
#include "engine/backend/device/buffer.h"
#include "engine/backend/device/thread_team.h"
#include "kernels/panels.h"

namespace servelab {
namespace {

using kernels::DType;

// What adapters take on the device once all that fit are there, and one more that still leaves.
std::size_t adapter_bytes(const ModelConfig& model, const DevicePlan& plan) {
  if (plan.folded) return 0;  // they are models, with matrices of their own
  if (!plan.padded) return static_cast<std::size_t>(plan.adapter_bytes);
  const int width = kernels::panels_of(plan.widest_rank) * kernels::kPanelColumns;
  Bytes slot = 0;
  for (const LinearLayer target : plan.targets) {
    const LinearShape shape =
        linear_shape(model, kLinearLayerNames[static_cast<std::size_t>(target)]);
    slot += (Bytes{shape.in} + shape.out) * width * model.layers *
            static_cast<Bytes>(kernels::bytes_of(plan.type));
  }
  return static_cast<std::size_t>((plan.adapters + 1) * slot);
}

class CpuAccelerator final : public Accelerator {
 public:
  std::string summary() const override { return "this machine's processors"; }
  void fields(ParamFields& f) override {
    f.add("threads", &threads_,
          "on cpu: compute threads per replica; 0: the processors, shared out")
        .range(0, 1024);
    f.add("gemm", &gemm_,
          "on cpu: library of the linear layers; auto: the fastest, as measured once")
        .one_of({"auto", "native", "eigen", "onednn"});
  }
  int devices() const override { return INT_MAX; }  // replicas share the cores
  void check_devices(int /*replicas*/, int ranks) const override {
    if (ranks > 1) refuse_ranks();
  }
  DeviceFacts facts(int /*device*/) const override {
    DeviceFacts facts;
    facts.generation = "cpu";
    facts.memory = std::min<Bytes>(machine_memory() / 4, 4 * kGiB);
    facts.multiprocessors = static_cast<int>(usable_cores().size());
    facts.l2 = std::max<Bytes>(1, ::sysconf(_SC_LEVEL2_CACHE_SIZE));
    return facts;
  }
  std::string device_name() const override { return ""; }
  std::string kernels_name(DType type) const override {
    return kernels::text(choose_kernels(gemm_, type));
  }
  std::string profile_stem(int threads) const override {
    return "cpu-" + std::to_string(threads) + "t";
  }
  ElementTypes element_types() const override {
    return {{DType::kBf16, DType::kF32}, DType::kF32};  // bf16 could not hold others exactly
  }
  void share_host(int replica, const HostShares& shares, DevicePlan* plan) const override {
    const std::vector<int> cores = usable_cores();
    const int each = std::max(1, static_cast<int>(cores.size()) / shares.replicas);
    plan->lora = shares.lora;
    if (shares.lora_by_engine || !shares.host_lora) plan->lora.by = HostLoraBy::kInline;
    const bool beside = plan->lora.by != HostLoraBy::kInline;
    if (plan->lora.workers == 0) plan->lora.workers = std::max(1, each / 4);
    if (!beside) plan->lora.workers = 0;
    const int wanted = shares.threads > 0 ? shares.threads : threads_;
    plan->host_threads = wanted > 0 ? wanted : std::max(1, each - plan->lora.workers);
    const int all = (plan->host_threads + plan->lora.workers) * shares.replicas;
    const bool fits = all <= static_cast<int>(cores.size());
    if (beside) check_cores(plan->lora, all, static_cast<int>(cores.size()));
    plan->lora.shares_cores = !fits;
    if (!shares.pin || !fits) return;
    const auto first = cores.begin() + replica * (plan->host_threads + plan->lora.workers);
    plan->host_cores.assign(first, first + plan->host_threads);
    plan->lora.cores.assign(first + plan->host_threads,
                            first + plan->host_threads + plan->lora.workers);
  }
  std::shared_ptr<DevicePartition> partition(int /*device*/) const override {
    throw SpecError("engine.device_share: the CPU engine gives a step the whole device");
  }

  std::unique_ptr<Device> make(const ModelConfig& model, const ModelWeights& weights,
                               const DevicePlan& plan) const override {
    CpuDeviceOptions options;
    static_cast<DeviceLimits&>(options) = plan.limits;
    options.threads =
        plan.host_threads > 0 ? plan.host_threads : static_cast<int>(usable_cores().size());
    options.cores = plan.host_cores;
    options.host_lora = plan.lora;
    const kernels::KernelChoice choice = choose_kernels(gemm_, plan.type);
    options.isa = choice.isa;
    options.gemm = choice.gemm;
    options.type = plan.type;
    options.adapter_bytes = adapter_bytes(model, plan);
    if (plan.merges) options.merge_targets = plan.targets;
    return std::make_unique<CpuDevice>(model, weights, options);
  }

  std::string name_group() const override { refuse_ranks(); }
  // A process may hold a replica of its own, but not a part of one.
  std::unique_ptr<Device> make_rank(const ModelConfig& model, const ModelWeights& weights,
                                    const DevicePlan& plan, const Shard& shard,
                                    const std::string& /*group*/) const override {
    if (shard.ranks > 1) refuse_ranks();
    return make(model, weights, plan);
  }

 private:
  [[noreturn]] static void refuse_ranks() {
    throw SpecError("cluster.tensor_parallel: the CPU engine runs a replica on one device; use 1");
  }

  int threads_ = 0;
  std::string gemm_ = "auto";
};

[[maybe_unused]] const bool registered =
    Registry<BackendKind>::instance().add("cpu", [] { return std::make_unique<CpuAccelerator>(); });

}  // namespace
}  // namespace servelab
