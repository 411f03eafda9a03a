#include "kernels/cuda/dense.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch.h"

namespace servelab::kernels::cuda {
namespace {

constexpr int kThreads = 128;

template <class T, class Y>
__global__ void __launch_bounds__(kThreads)
    reference_dense_kernel(const T* x, std::int64_t ldx, const T* w, int n, int k, Y* y,
                           std::int64_t ldy, bool add) {
  const int column = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const auto row = static_cast<std::int64_t>(blockIdx.y);
  if (column >= n) return;
  float sum = 0;
  for (int i = 0; i < k; ++i) {
    sum += to_f32(x[row * ldx + i]) * to_f32(w[std::int64_t{column} * k + i]);
  }
  Y* const to = y + row * ldy + column;
  *to = from_f32<Y>(add ? to_f32(*to) + sum : sum);
}

class ReferenceDense final : public Dense {
 public:
  cudaError_t multiply(DType type, const void* x, std::int64_t ldx, const void* w, int m, int n,
                       int k, DType y_type, void* y, std::int64_t ldy, bool add,
                       cudaStream_t stream) override {
    if (y_type != type && y_type != DType::kF32) return cudaErrorNotSupported;
    const dim3 grid(blocks_for(n, kThreads), static_cast<unsigned>(m));
    return with_half_type(type, [&](auto element) {
      using T = decltype(element);
      const auto start = [&]<class Y>(Y* to) {
        return launch(reference_dense_kernel<T, Y>, grid, kThreads, 0, stream,
                      static_cast<const T*>(x), ldx, static_cast<const T*>(w), n, k, to, ldy, add);
      };
      return y_type == DType::kF32 ? start(static_cast<float*>(y)) : start(static_cast<T*>(y));
    });
  }
};

}  // namespace

std::unique_ptr<Dense> make_reference_dense() { return std::make_unique<ReferenceDense>(); }

}  // namespace servelab::kernels::cuda
