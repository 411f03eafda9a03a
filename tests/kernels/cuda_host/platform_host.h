// The functions of kernels/cuda/platform_gpu.cuh on the host; see there for what they do.
#ifndef SERVELAB_TESTS_KERNELS_CUDA_HOST_PLATFORM_HOST_H_
#define SERVELAB_TESTS_KERNELS_CUDA_HOST_PLATFORM_HOST_H_

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/dtype.h"
#include "tests/kernels/cuda_host/executor.h"
#include "tests/kernels/cuda_host/indices.h"
#include "tests/kernels/cuda_host/platform_host_sm90.h"

namespace servelab::kernels::cuda {

namespace host = ::servelab::cuda_host;

using std::fabs;
using std::fmaxf;
using std::fminf;
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }

// --- memory ---

inline bool aligned_16(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % 16 == 0;
}
inline uint4 load_16(const void* from, const Where& where = Where::current()) {
  host::require(aligned_16(from), "an unaligned load of 16 bytes", where);
  uint4 value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
inline uint4 load_16_once(const void* from, const Where& where = Where::current()) {
  return load_16(from, where);
}
inline void store_16(void* to, uint4 value, const Where& where = Where::current()) {
  host::require(aligned_16(to), "an unaligned store of 16 bytes", where);
  std::memcpy(to, &value, sizeof(value));
}
inline char* shared_memory() { return host::shared_memory(); }
inline void copy_async_16(void* shared, const void* global, bool valid = true,
                          const Where& where = Where::current()) {
  host::copy_async(shared, global, valid, where);
}
inline void copy_async_commit() { host::copy_async_commit(); }
template <int pending>
void copy_async_wait() {
  host::copy_async_wait(pending);
}
inline int atomic_add(int* to, int value) {
  const int before = *to;
  *to += value;
  return before;
}
inline void memory_fence() {}
inline void memory_fence_system() {}
inline void store_release_system(std::uint32_t* to, std::uint32_t value) {
  std::atomic_ref(*to).store(value, std::memory_order_release);
}

// --- conversions ---

inline float to_f32(float x) { return x; }
inline float to_f32(Bf16 x) { return to_float(x); }
inline float to_f32(F16 x) { return to_float(x); }
template <class T>
T from_f32(float x) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return to_bf16(x);
  } else if constexpr (std::is_same_v<T, F16>) {
    return to_f16(x);
  } else {
    return x;
  }
}
template <class T>
std::uint32_t pack(float low, float high) {
  return from_f32<T>(low).bits | static_cast<std::uint32_t>(from_f32<T>(high).bits) << 16;
}
template <class T>
float2 unpack(std::uint32_t packed) {
  return {to_f32(T{static_cast<std::uint16_t>(packed)}),
          to_f32(T{static_cast<std::uint16_t>(packed >> 16)})};
}

// --- arithmetic ---

inline float exp2_fast(float x) { return std::exp2(x); }
inline float rsqrt_exact(float x) { return 1.0f / std::sqrt(x); }

// --- warps and blocks ---

// Every lane gives a value and an operand, and gets what `choose` takes from all of them.
template <class V, class Choose>
V exchange(const char* name, V value, int operand, const Where& where, Choose) {
  struct Lane {
    V value;
    int operand;
    V result;
  } lane{value, operand, V{}};
  host::warp_operation(
      name, &lane,
      [](void* const(&lanes)[32]) {
        for (int i = 0; i < 32; ++i) {
          auto& self = *static_cast<Lane*>(lanes[i]);
          const int from = Choose{}(i, self.operand);
          self.result = static_cast<Lane*>(lanes[from >= 0 && from < 32 ? from : i])->value;
        }
      },
      where);
  return lane.result;
}
template <class V>
V shuffle(V value, int lane, const Where& where = Where::current()) {
  return exchange("shuffle", value, lane, where, [](int, int from) { return from % 32; });
}
template <class V>
V shuffle_xor(V value, int lanes, const Where& where = Where::current()) {
  return exchange("shuffle_xor", value, lanes, where, [](int i, int by) { return i ^ by; });
}
template <class V>
V shuffle_up(V value, int lanes, const Where& where = Where::current()) {
  return exchange("shuffle_up", value, lanes, where, [](int i, int by) { return i - by; });
}
template <class V>
V shuffle_down(V value, int lanes, const Where& where = Where::current()) {
  return exchange("shuffle_down", value, lanes, where, [](int i, int by) { return i + by; });
}
unsigned ballot(bool value, const Where& where = Where::current());
void warp_barrier(const Where& where = Where::current());
inline void block_barrier(const Where& where = Where::current()) {
  host::block_barrier(0, 0, where);
}
inline void named_barrier(int id, int threads, const Where& where = Where::current()) {
  host::block_barrier(id, threads, where);
}

// --- tensor cores ---

void load_matrices(std::uint32_t (&r)[4], const void* row, const Where& where = Where::current());
void load_matrices_transposed(std::uint32_t (&r)[4], const void* row,
                              const Where& where = Where::current());
template <class T>
void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                  const Where& where = Where::current());

// --- launch ---

template <class... Parameters>
cudaError_t launch_on_platform(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                               std::size_t shared_bytes, cudaStream_t /*runs at once*/,
                               Parameters... parameters) {
  return host::run_grid(grid, block, shared_bytes, [&] { kernel(parameters...); });
}

}  // namespace servelab::kernels::cuda

#endif  // SERVELAB_TESTS_KERNELS_CUDA_HOST_PLATFORM_HOST_H_
