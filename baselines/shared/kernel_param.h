// The `kernel` parameter that unmerged techniques share.
#ifndef SERVELAB_BASELINES_SHARED_KERNEL_PARAM_H_
#define SERVELAB_BASELINES_SHARED_KERNEL_PARAM_H_

#include <string>
#include <vector>

#include "engine/core/check.h"
#include "engine/serve/policy.h"

namespace servelab {

inline std::vector<std::string> lora_kernel_names() {
  std::vector<std::string> names;
  for (const auto& row : kernels::kLoraKinds) names.emplace_back(row.name);
  return names;
}

inline void add_kernel_field(ParamFields& f, std::string* kernel) {
  f.add("kernel", kernel, "how the LoRA part of an unmerged step is computed")
      .one_of(lora_kernel_names());
}

// `text` is one of the names above.
inline LoraKernel kernel_from(const std::string& text) {
  for (const auto& row : kernels::kLoraKinds) {
    if (text == row.name) return row.kind;
  }
  SL_CHECK(false, "no LoRA kernel is called " + text);
  return {};
}

}  // namespace servelab

#endif  // SERVELAB_BASELINES_SHARED_KERNEL_PARAM_H_
