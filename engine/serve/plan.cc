#include "engine/serve/plan.h"

namespace servelab {

const char* name(Exec exec) { return exec == Exec::kMerged ? "merged" : "unmerged"; }

const char* name(LoraKernel kernel) { return kernels::traits(kernel).name; }

}  // namespace servelab
