#include "kernels/cuda/device.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/launch.h"

namespace servelab::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// One block per row. The second pass reads x from the L1 cache.
template <class T>
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(const float* x, const float* weight, float eps, int n, T* out) {
  const float* row = x + std::int64_t{blockIdx.x} * n;
  T* to = out + std::int64_t{blockIdx.x} * n;
  float squares = 0;
  for (int i = 4 * static_cast<int>(threadIdx.x); i < n; i += 4 * kThreads) {
    const float4 v = *reinterpret_cast<const float4*>(row + i);
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  const float sum = block_sum(squares, reinterpret_cast<float*>(shared_memory()));
  const float scale = rsqrt_exact(sum / static_cast<float>(n) + eps);
  for (int i = 4 * static_cast<int>(threadIdx.x); i < n; i += 4 * kThreads) {
    const float4 v = *reinterpret_cast<const float4*>(row + i);
    const float4 w = *reinterpret_cast<const float4*>(weight + i);
    const uint2 packed = {pack<T>(v.x * scale * w.x, v.y * scale * w.y),
                          pack<T>(v.z * scale * w.z, v.w * scale * w.w)};
    *reinterpret_cast<uint2*>(to + i) = packed;
  }
}

}  // namespace

cudaError_t rms_norm(const float* x, const float* weight, float eps, int n, DType type, void* out,
                     int rows, cudaStream_t stream) {
  if (n % 4 != 0) return cudaErrorNotSupported;
  return with_half_type(type, [&](auto element) {
    using T = decltype(element);
    return launch(rms_norm_kernel<T>, rows, kThreads, kThreads / kWarp * sizeof(float), stream, x,
                  weight, eps, n, static_cast<T*>(out));
  });
}

}  // namespace servelab::kernels::cuda
