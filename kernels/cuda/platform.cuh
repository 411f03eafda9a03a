// Where kernels run: on a GPU, or (in tests) as ordinary code on the host. This is the only place
// that decides. Both platforms define the functions that platform_gpu.cuh lists.
#ifndef SERVELAB_KERNELS_CUDA_PLATFORM_CUH_
#define SERVELAB_KERNELS_CUDA_PLATFORM_CUH_

#ifdef SERVELAB_CUDA_PLATFORM
#include SERVELAB_CUDA_PLATFORM
#else
#include "kernels/cuda/platform_gpu.cuh"
#endif

#endif  // SERVELAB_KERNELS_CUDA_PLATFORM_CUH_
