// Maps of matrices for the tensor copies of compute capability 9.0.
#ifndef SERVELAB_KERNELS_CUDA_TENSOR_MAP_H_
#define SERVELAB_KERNELS_CUDA_TENSOR_MAP_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/platform.cuh"
#include "kernels/dtype.h"

namespace servelab::kernels::cuda {

// A map for copy_box(): boxes of 64 columns and `box_rows` rows (at most 256) of a matrix of 16-bit
// elements [rows, columns] at `data` (16-byte aligned; stride in elements, a multiple of 8). Pure
// host work, also while a stream is captured. cudaErrorNotSupported where the current device has
// another compute capability than 9.
cudaError_t make_tensor_map(DType type, const void* data, std::int64_t rows, std::int64_t columns,
                            std::int64_t stride, int box_rows, TensorMap& map);

}  // namespace servelab::kernels::cuda

#endif  // SERVELAB_KERNELS_CUDA_TENSOR_MAP_H_
