// The `kernel` parameter that unmerged techniques share.
#ifndef SERVELAB_BASELINES_SHARED_KERNEL_PARAM_H_
#define SERVELAB_BASELINES_SHARED_KERNEL_PARAM_H_

#include <string>
#include <utility>
#include <vector>

#include "engine/core/check.h"
#include "engine/serve/policy.h"

namespace servelab {

inline void add_kernel_field(ParamFields& f, std::string* kernel) {
  std::vector<std::string> names;
  for (const auto& row : kernels::kLoraKinds) names.emplace_back(row.name);
  f.add("kernel", kernel, "how the LoRA part of an unmerged step is computed")
      .one_of(std::move(names));
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
