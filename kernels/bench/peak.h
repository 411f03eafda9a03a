// Multiply-adds that wait for nothing, one unit for each instruction set.
#ifndef SERVELAB_KERNELS_BENCH_PEAK_H_
#define SERVELAB_KERNELS_BENCH_PEAK_H_

#include "kernels/dtype.h"

namespace servelab::kernels {

// Floating-point operations that were spent.
double spend_flops_avx2(int rounds);
double spend_flops_avx512(DType type, int rounds);

}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_BENCH_PEAK_H_
