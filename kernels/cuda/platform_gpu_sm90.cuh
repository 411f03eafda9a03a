// Instructions of compute capability 9.0a: tensor copies, their barriers, and matrix products of a
// warpgroup. Code for other capabilities compiles and traps; launchers do not start it there.
#ifndef SERVELAB_KERNELS_CUDA_PLATFORM_GPU_SM90_CUH_
#define SERVELAB_KERNELS_CUDA_PLATFORM_GPU_SM90_CUH_

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/dtype.h"

namespace servelab::kernels::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SERVELAB_SM90_ASM(...) asm volatile(__VA_ARGS__)
#else
#define SERVELAB_SM90_ASM(...) __trap()
#endif

// A matrix in global memory that tensor copies read (tensor_map.h); a kernel's parameter by value.
using TensorMap = CUtensorMap;

// --- barriers of copies, 8 bytes of shared memory each ---

__device__ inline std::uint32_t shared_address(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}
// By one thread, before a block barrier. Every phase waits for one arrival.
__device__ inline void copy_barrier_init(std::uint64_t* barrier) {
  SERVELAB_SM90_ASM(
      "mbarrier.init.shared::cta.b64 [%0], 1;\n"
      "fence.proxy.async.shared::cta;" ::"r"(shared_address(barrier))
      : "memory");
}
// Arrives; the phase ends when `bytes` have been copied.
__device__ inline void copy_barrier_expect(std::uint64_t* barrier, int bytes) {
  SERVELAB_SM90_ASM(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
// Waits for the end of the phase number `phase` (0, 1, ...). All threads of the block call it.
__device__ inline void copy_barrier_wait(std::uint64_t* barrier, int phase) {
  SERVELAB_SM90_ASM(
      "{\n"
      ".reg .pred done;\n"
      "AGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra AGAIN;\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(phase % 2)
      : "memory");
}

// Starts to copy the map's box at (column, row), by one thread. Rows of 128 bytes; the 16-byte
// chunk c of row r lies at chunk c ^ r % 8 (128-byte swizzle), zeros outside of the matrix.
// `shared` is 1024-byte aligned.
__device__ inline void copy_box(void* shared, const TensorMap& map, int column, int row,
                                std::uint64_t* barrier) {
  SERVELAB_SM90_ASM(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3}], [%4];" ::"r"(shared_address(shared)),
      "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(column), "r"(row),
      "r"(shared_address(barrier))
      : "memory");
}

// This thread's writes to shared memory are seen by matrix products that start after a barrier.
__device__ inline void publish_to_products() {
  SERVELAB_SM90_ASM("fence.proxy.async.shared::cta;" ::: "memory");
}

// --- products of a warpgroup: 128 threads, all together ---

// Before the first product, and when registers of sums were written.
__device__ inline void products_begin() {
  SERVELAB_SM90_ASM("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void products_commit() {
  SERVELAB_SM90_ASM("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits for all products; `sums` may be read from then on.
template <int kCount>
__device__ inline void products_wait(float (&sums)[kCount]) {
  SERVELAB_SM90_ASM("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// Rows of 64 elements (128 bytes) in shared memory, swizzled as copy_box() does, 1024-byte aligned;
// columns 16 `step` and on. PTX ISA, "Matrix descriptor": address / 16, stride of 8 rows / 16 at
// bit 32, 128-byte swizzle (1) at bit 62.
__device__ inline std::uint64_t rows_for_product(const void* tile, int step) {
  const std::uint64_t address = shared_address(tile) + 32u * static_cast<std::uint32_t>(step);
  return (address & 0x3ffff) >> 4 | std::uint64_t{1} << 16 | std::uint64_t{1024 / 16} << 32 |
         std::uint64_t{1} << 62;
}

// sums[64, kN] += a[64, 16] b[kN, 16]^T (wgmma.m64nNk16), kN 16 or 64. Warp w of the warpgroup
// holds rows 16 w and on as multiply_add()'s c does: sums[4 j + i] is c[i] of columns 8 j and on.
#define SERVELAB_WGMMA_16(TYPE)                                                               \
  SERVELAB_SM90_ASM("wgmma.mma_async.sync.aligned.m64n16k16.f32." TYPE "." TYPE               \
                    " {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, 1, 1, 1, 0, 0;"               \
                    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), \
                      "+f"(d[6]), "+f"(d[7])                                                  \
                    : "l"(a), "l"(b)                                                          \
                    : "memory")
#define SERVELAB_WGMMA_64(TYPE)                                                                 \
  SERVELAB_SM90_ASM("wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE                 \
                    " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, "       \
                    "%15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, "    \
                    "%29, %30, %31}, %32, %33, 1, 1, 1, 0, 0;"                                  \
                    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),   \
                      "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), \
                      "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),          \
                      "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),          \
                      "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]),          \
                      "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])           \
                    : "l"(a), "l"(b)                                                            \
                    : "memory")
template <class T>
__device__ inline void multiply_rows(float (&d)[8], std::uint64_t a, std::uint64_t b) {
  if constexpr (std::is_same_v<T, Bf16>) {
    SERVELAB_WGMMA_16("bf16");
  } else {
    SERVELAB_WGMMA_16("f16");
  }
}
template <class T>
__device__ inline void multiply_rows(float (&d)[32], std::uint64_t a, std::uint64_t b) {
  if constexpr (std::is_same_v<T, Bf16>) {
    SERVELAB_WGMMA_64("bf16");
  } else {
    SERVELAB_WGMMA_64("f16");
  }
}
#undef SERVELAB_WGMMA_16
#undef SERVELAB_WGMMA_64

#undef SERVELAB_SM90_ASM

}  // namespace servelab::kernels::cuda

#endif  // SERVELAB_KERNELS_CUDA_PLATFORM_GPU_SM90_CUH_
