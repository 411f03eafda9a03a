#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_argmax.cuh"
#include "kernels/cuda/sampling.h"

namespace servelab::kernels::cuda {
namespace {

constexpr int kThreads = 512;

__global__ void __launch_bounds__(kThreads)
    argmax_kernel(const float* logits, int n, std::int32_t* tokens) {
  const Best best = row_argmax(logits + std::int64_t{blockIdx.x} * n, n,
                               reinterpret_cast<Best*>(shared_memory()));
  if (threadIdx.x == 0) tokens[blockIdx.x] = best.index < n ? best.index : -1;
}

}  // namespace

cudaError_t argmax(const float* logits, int rows, int n, std::int32_t* tokens,
                   cudaStream_t stream) {
  return launch(argmax_kernel, static_cast<unsigned>(rows), kThreads,
                kThreads / kWarp * sizeof(Best), stream, logits, n, tokens);
}

}  // namespace servelab::kernels::cuda
