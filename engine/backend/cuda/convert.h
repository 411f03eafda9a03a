// Elements from the type that they are stored in to the device's.
#ifndef SERVELAB_BACKEND_CUDA_CONVERT_H_
#define SERVELAB_BACKEND_CUDA_CONVERT_H_

#include <cstddef>

#include "kernels/dtype.h"

namespace servelab::cuda {

// out[i] = from[i], rounded to nearest even; f32 to f16 may overflow to infinity.
void convert(kernels::DType from_type, const void* from, kernels::DType type, void* out,
             std::size_t count);

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_CONVERT_H_
