// What a core can do at best, one unit for each instruction set: multiply-adds that wait for
// nothing, and reading memory.
#ifndef SERVELAB_KERNELS_CPU_PEAK_H_
#define SERVELAB_KERNELS_CPU_PEAK_H_

#include <cstddef>
#include <cstdint>

#include "kernels/ops.h"

namespace servelab::kernels {

// Floating-point operations of the calling thread in `rounds` rounds; they are done when this
// returns. bf16: by dot products, where there are any.
double spend_flops(Isa isa, DType type, int rounds);

double spend_flops_avx2(int rounds);
double spend_flops_avx512(DType type, int rounds);

// Reads `bytes` (a multiple of 64) at `data`, 64-byte aligned, and returns some sum of them.
std::uint64_t read_all(Isa isa, const char* data, std::size_t bytes);

std::uint64_t read_all_avx2(const char* data, std::size_t bytes);
std::uint64_t read_all_avx512(const char* data, std::size_t bytes);

}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_CPU_PEAK_H_
