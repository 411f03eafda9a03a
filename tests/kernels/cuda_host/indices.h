// The names that CUDA C++ knows without any header, for kernels that are compiled as C++.
#ifndef SERVELAB_TESTS_KERNELS_CUDA_HOST_INDICES_H_
#define SERVELAB_TESTS_KERNELS_CUDA_HOST_INDICES_H_

#include <cuda_runtime_api.h>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __forceinline__
#undef __launch_bounds__
#undef __align__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __shared__ static  // blocks run one after another
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
#define __grid_constant__

extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;

#endif  // SERVELAB_TESTS_KERNELS_CUDA_HOST_INDICES_H_
