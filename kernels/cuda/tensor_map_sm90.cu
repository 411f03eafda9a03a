#include <cudaTypedefs.h>

#include "kernels/cuda/tensor_map.h"

namespace servelab::kernels::cuda {
namespace {

// The driver's function, found at run time so that nothing links with the driver's library.
cudaError_t find_encode(PFN_cuTensorMapEncodeTiled_v12000& encode) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status{};
  constexpr unsigned kSince = 12000;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                             kSince, cudaEnableDefault, &status);
  if (error != cudaSuccess) return error;
  if (status != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
  encode = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
  return cudaSuccess;
}

}  // namespace

cudaError_t make_tensor_map(DType type, const void* data, std::int64_t rows, std::int64_t columns,
                            std::int64_t stride, int box_rows, TensorMap& map) {
  int device = 0;
  int major = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  }
  if (error != cudaSuccess) return error;
  if (major != 9 || type == DType::kF32) return cudaErrorNotSupported;
  PFN_cuTensorMapEncodeTiled_v12000 encode = nullptr;
  if (error = find_encode(encode); error != cudaSuccess) return error;
  constexpr cuuint32_t kBoxColumns = 64;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(stride) * 2};  // bytes
  const cuuint32_t box[] = {kBoxColumns, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  const CUresult result = encode(
      &map,
      type == DType::kBf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2,
      const_cast<void*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace servelab::kernels::cuda
