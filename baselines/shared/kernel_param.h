// The `kernel` parameter that unmerged techniques share.
#ifndef SERVELAB_BASELINES_SHARED_KERNEL_PARAM_H_
#define SERVELAB_BASELINES_SHARED_KERNEL_PARAM_H_

#include <string>

#include "engine/serve/policy.h"

namespace servelab {

inline void add_kernel_field(ParamFields& f, std::string* kernel) {
  f.add("kernel", kernel, "how the LoRA part of an unmerged step is computed")
      .one_of({"bgmv", "mbgmv", "sgmv", "einsum"});
}

inline LoraKernel kernel_from(const std::string& text) {
  for (const LoraKernel kernel : {LoraKernel::kBgmv, LoraKernel::kMbgmv, LoraKernel::kSgmv}) {
    if (text == name(kernel)) return kernel;
  }
  return LoraKernel::kEinsum;
}

}  // namespace servelab

#endif  // SERVELAB_BASELINES_SHARED_KERNEL_PARAM_H_
