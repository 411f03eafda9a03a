// From a DType to a template's argument.
#ifndef SERVELAB_KERNELS_CUDA_DISPATCH_H_
#define SERVELAB_KERNELS_CUDA_DISPATCH_H_

#include <cuda_runtime_api.h>

#include "kernels/dtype.h"

namespace servelab::kernels::cuda {

// run(Bf16{}) or run(F16{}); cudaErrorNotSupported for kF32.
template <class Run>
cudaError_t with_half_type(DType type, const Run& run) {
  switch (type) {
    case DType::kBf16:
      return run(Bf16{});
    case DType::kF16:
      return run(F16{});
    case DType::kF32:
      break;
  }
  return cudaErrorNotSupported;
}

// As above, and run(float{}) for kF32.
template <class Run>
cudaError_t with_type(DType type, const Run& run) {
  return type == DType::kF32 ? run(float{}) : with_half_type(type, run);
}

}  // namespace servelab::kernels::cuda

#endif  // SERVELAB_KERNELS_CUDA_DISPATCH_H_
