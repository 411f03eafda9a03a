// The instruction sets' tables. On a processor without one, its table may be named but not called.
#ifndef SERVELAB_KERNELS_CPU_ISA_TABLES_H_
#define SERVELAB_KERNELS_CPU_ISA_TABLES_H_

#include "kernels/ops.h"

namespace servelab::kernels {

extern const Ops kAvx2Ops;
extern const Ops kAvx512Bf16Ops;
extern const Ops kAvx512Bf16DotOps;

}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_CPU_ISA_TABLES_H_
