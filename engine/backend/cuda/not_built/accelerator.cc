// Stands for the CUDA engine in programs without it, so that their specs can name it.
#include "engine/backend/device/accelerator.h"

#include <string>

namespace servelab::cuda {
namespace {

class NotBuilt final : public Accelerator {
 public:
  std::string summary() const override { return "an NVIDIA GPU; not in this build"; }
  int devices() const override { refuse(); }
  void check_devices(int /*replicas*/, int /*ranks*/) const override { refuse(); }
  DeviceFacts facts(int /*device*/) const override { refuse(); }
  std::string profile_stem(int /*threads*/) const override { refuse(); }
  bool loads_by_layer() const override { return true; }
  ElementTypes element_types() const override {
    return {{kernels::DType::kBf16, kernels::DType::kF16}, kernels::DType::kBf16};
  }
  void share_host(int /*replica*/, const HostShares& /*shares*/,
                  DevicePlan* /*plan*/) const override {}
  std::shared_ptr<DevicePartition> partition(int /*device*/) const override { refuse(); }
  std::unique_ptr<Device> make(const ModelConfig& /*model*/, const ModelWeights& /*weights*/,
                               const DevicePlan& /*plan*/) const override {
    refuse();
  }
  std::string name_group() const override { refuse(); }
  std::unique_ptr<Device> make_rank(const ModelConfig& /*model*/, const ModelWeights& /*weights*/,
                                    const DevicePlan& /*plan*/, const Shard& /*shard*/,
                                    const std::string& /*group*/) const override {
    refuse();
  }

 private:
  [[noreturn]] static void refuse() {
    throw SpecError(
        "backend 'cuda': this servelab was built without CUDA; run make build where the CUDA "
        "Toolkit is installed, or use backend: twin or backend: cpu");
  }
};

[[maybe_unused]] const bool registered =
    Registry<BackendKind>::instance().add("cuda", [] { return std::make_unique<NotBuilt>(); });

}  // namespace
}  // namespace servelab::cuda
