// The device instructions that kernels use, and the launch. Kernels contain no other inline
// assembly and call no CUDA intrinsic besides threadIdx and its like, so that another platform can
// stand in for this file. Warp operations are for whole warps: all 32 threads call them together.
#ifndef SERVELAB_KERNELS_CUDA_PLATFORM_GPU_CUH_
#define SERVELAB_KERNELS_CUDA_PLATFORM_GPU_CUH_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/platform_gpu_sm90.cuh"
#include "kernels/dtype.h"

namespace servelab::kernels::cuda {

// --- memory ---

// 16 bytes from a 16-byte aligned address. load_16_once: global memory that is read once and need
// not stay in the L1 cache.
__device__ inline uint4 load_16(const void* from) { return *static_cast<const uint4*>(from); }
__device__ inline uint4 load_16_once(const void* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}
__device__ inline void store_16(void* to, uint4 value) { *static_cast<uint4*>(to) = value; }

// The block's dynamic shared memory, 1024-byte aligned by the launch of at most one such array.
// All shared memory of a kernel is dynamic: the launch names its size.
__device__ inline char* shared_memory() {
  extern __shared__ __align__(1024) char dynamic_shared[];
  return dynamic_shared;
}

// Starts a copy of 16 aligned bytes from global to shared memory; zeros when not `valid`. It has
// happened, for this thread, after a wait for its group; for others after a barrier beyond that.
__device__ inline void copy_async_16(void* shared, const void* global, bool valid = true) {
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes)
               : "memory");
}
__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `pending` of this thread's latest groups are under way.
template <int pending>
__device__ inline void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

__device__ inline int atomic_add(int* to, int value) { return atomicAdd(to, value); }
__device__ inline void memory_fence() { __threadfence(); }
// Also for the host and other devices, through pinned memory.
__device__ inline void memory_fence_system() { __threadfence_system(); }
__device__ inline void store_release_system(std::uint32_t* to, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

// --- conversions, rounding to nearest even; two values are packed as {low, high} ---

template <class T>
__device__ inline std::uint32_t pack(float low, float high);
template <>
__device__ inline std::uint32_t pack<Bf16>(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
template <>
__device__ inline std::uint32_t pack<F16>(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ inline float to_f32(float x) { return x; }
__device__ inline float to_f32(Bf16 x) {
  return __uint_as_float(static_cast<std::uint32_t>(x.bits) << 16);
}
__device__ inline float to_f32(F16 x) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
  return value;
}
template <class T>
__device__ inline T from_f32(float x) {
  return T{static_cast<std::uint16_t>(pack<T>(x, 0.0f))};
}
template <>
__device__ inline float from_f32<float>(float x) {
  return x;
}
template <class T>
__device__ inline float2 unpack(std::uint32_t packed) {
  return {to_f32(T{static_cast<std::uint16_t>(packed)}),
          to_f32(T{static_cast<std::uint16_t>(packed >> 16)})};
}

// --- arithmetic ---

__device__ inline float exp2_fast(float x) {  // 2 units in the last place; 0 for large negative x
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float rsqrt_exact(float x) { return 1.0f / sqrtf(x); }

// --- warps and blocks ---

inline constexpr unsigned kWholeWarp = 0xffffffffu;
template <class V>
__device__ inline V shuffle(V value, int lane) {
  return __shfl_sync(kWholeWarp, value, lane);
}
template <class V>
__device__ inline V shuffle_xor(V value, int lanes) {
  return __shfl_xor_sync(kWholeWarp, value, lanes);
}
template <class V>
__device__ inline V shuffle_up(V value, int lanes) {  // lanes without a source keep their value
  return __shfl_up_sync(kWholeWarp, value, static_cast<unsigned>(lanes));
}
template <class V>
__device__ inline V shuffle_down(V value, int lanes) {
  return __shfl_down_sync(kWholeWarp, value, static_cast<unsigned>(lanes));
}
__device__ inline unsigned ballot(bool value) { return __ballot_sync(kWholeWarp, value); }
__device__ inline void warp_barrier() { __syncwarp(); }
__device__ inline void block_barrier() { __syncthreads(); }
// Barrier `id` (1 to 15) among `threads` threads of the block, whole warps.
__device__ inline void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// --- tensor cores, PTX ISA's fragment layouts ---

// Four 8 x 8 matrices of 16-bit elements from shared memory: lane i gives the address of row i % 8
// of matrix i / 8 (16-byte aligned) and gets in r[j], of matrix j, row lane / 4, columns
// 2 * (lane % 4) and the next; transposed: column lane / 4, rows 2 * (lane % 4) and the next.
__device__ inline void load_matrices(std::uint32_t (&r)[4], const void* row) {
  const auto from = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}
__device__ inline void load_matrices_transposed(std::uint32_t (&r)[4], const void* row) {
  const auto from = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}

// c[16, 8] += a[16, 16] b[16, 8] with T's elements and f32 sums (mma.m16n8k16). With g = lane / 4
// and t = lane % 4: a[0] holds row g, columns 2t and 2t + 1; a[1] row g + 8; a[2] and a[3] the same
// rows, columns + 8; b0 rows (k) 2t and 2t + 1 of column g, b1 rows + 8; c[0], c[1] row g, columns
// 2t and 2t + 1; c[2], c[3] row g + 8.
template <class T>
__device__ inline void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                    std::uint32_t b1);
template <>
__device__ inline void multiply_add<Bf16>(float (&c)[4], const std::uint32_t (&a)[4],
                                          std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ inline void multiply_add<F16>(float (&c)[4], const std::uint32_t (&a)[4],
                                         std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// --- launch: see launch.h ---

template <class... Parameters>
cudaError_t launch_on_platform(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                               std::size_t shared_bytes, cudaStream_t stream,
                               Parameters... parameters) {
  const auto* const function = reinterpret_cast<const void*>(kernel);
  constexpr std::size_t kWithoutAsking = 48 * 1024;
  if (shared_bytes > kWithoutAsking) {
    const cudaError_t error = cudaFuncSetAttribute(
        function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return error;
  }
  void* pointers[] = {const_cast<void*>(static_cast<const volatile void*>(&parameters))...};
  const cudaError_t error = cudaLaunchKernel(function, grid, block, pointers, shared_bytes, stream);
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());  // reported once, here
  return error;
}

}  // namespace servelab::kernels::cuda

#endif  // SERVELAB_KERNELS_CUDA_PLATFORM_GPU_CUH_
