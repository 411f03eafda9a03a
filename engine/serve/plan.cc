#include "engine/serve/plan.h"

namespace servelab {

const char* name(Exec exec) { return exec == Exec::kMerged ? "merged" : "unmerged"; }

const char* name(LoraKernel kernel) {
  switch (kernel) {
    case LoraKernel::kBgmv:
      return "bgmv";
    case LoraKernel::kMbgmv:
      return "mbgmv";
    case LoraKernel::kSgmv:
      return "sgmv";
    case LoraKernel::kEinsum:
      return "einsum";
  }
  return "?";
}

const char* name(HostCopy copy) { return copy == HostCopy::kFused ? "fused" : "native"; }

}  // namespace servelab
