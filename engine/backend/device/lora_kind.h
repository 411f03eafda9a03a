// A plan's LoRA kernel as the kernels name it.
#ifndef SERVELAB_BACKEND_DEVICE_LORA_KIND_H_
#define SERVELAB_BACKEND_DEVICE_LORA_KIND_H_

#include "engine/serve/plan.h"
#include "kernels/lora.h"

namespace servelab {

constexpr kernels::LoraKind lora_kind(LoraKernel kernel) {
  switch (kernel) {
    case LoraKernel::kBgmv:
      return kernels::LoraKind::kBgmv;
    case LoraKernel::kMbgmv:
      return kernels::LoraKind::kMbgmv;
    case LoraKernel::kSgmv:
      return kernels::LoraKind::kSgmv;
    case LoraKernel::kEinsum:
      return kernels::LoraKind::kEinsum;
  }
  return kernels::LoraKind::kSgmv;
}

}  // namespace servelab

#endif  // SERVELAB_BACKEND_DEVICE_LORA_KIND_H_
