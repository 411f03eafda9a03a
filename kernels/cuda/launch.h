// The one way to start a kernel.
#ifndef SERVELAB_KERNELS_CUDA_LAUNCH_H_
#define SERVELAB_KERNELS_CUDA_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <type_traits>

#include "kernels/cuda/platform.cuh"

namespace servelab::kernels::cuda {

// Starts `kernel` on grid x block threads with `shared_bytes` of dynamic shared memory (above 48
// KiB the kernel's limit is raised). Returns the launch's error: what the kernel does wrong later,
// the stream reports. An empty grid is nothing to do.
template <class... Parameters>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
                   cudaStream_t stream, std::type_identity_t<Parameters>... parameters) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return cudaSuccess;
  return launch_on_platform<Parameters...>(kernel, grid, block, shared_bytes, stream,
                                           parameters...);
}

template <class Count, class Part>
constexpr unsigned blocks_for(Count count, Part part) {  // count / part, rounded up
  return static_cast<unsigned>((count + part - 1) / part);
}

}  // namespace servelab::kernels::cuda

#endif  // SERVELAB_KERNELS_CUDA_LAUNCH_H_
