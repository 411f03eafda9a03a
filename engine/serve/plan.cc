#include "engine/serve/plan.h"

#include <array>
#include <cstddef>

namespace servelab {

const char* name(Exec exec) { return exec == Exec::kMerged ? "merged" : "unmerged"; }

const char* name(LoraKernel kernel) { return kernels::traits(kernel).name; }

const char* name(HostCopy copy) {
  constexpr std::array<const char*, kHostCopies> kNames = {"fused", "synced", "pageable"};
  return kNames[static_cast<std::size_t>(copy)];
}

const char* name(TakeOver take_over) {
  constexpr std::array<const char*, kTakeOvers> kNames = {"never", "loaded", "layers"};
  return kNames[static_cast<std::size_t>(take_over)];
}

}  // namespace servelab
