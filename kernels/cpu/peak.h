// Multiply-adds that wait for nothing, one unit for each instruction set: what a core can do at
// best.
#ifndef SERVELAB_KERNELS_CPU_PEAK_H_
#define SERVELAB_KERNELS_CPU_PEAK_H_

#include "kernels/ops.h"

namespace servelab::kernels {

// Floating-point operations of the calling thread in `rounds` rounds; they are done when this
// returns. bf16: by dot products, where there are any.
double spend_flops(Isa isa, DType type, int rounds);

double spend_flops_avx2(int rounds);
double spend_flops_avx512(DType type, int rounds);

}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_CPU_PEAK_H_
