// What cuBLASLt's heuristic is told when it is asked for algorithms. Not for other callers.
#ifndef SERVELAB_KERNELS_CUDA_DENSE_PREFERENCES_H_
#define SERVELAB_KERNELS_CUDA_DENSE_PREFERENCES_H_

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>

namespace servelab::kernels::cuda {

// What heuristics may rely on: the alignment of each matrix in bytes, a power of two.
struct DenseAlignment {
  std::uint32_t w, x, y;
};

// Split-K may add its partial sums in f32 alone (COMPUTE_TYPE): by default it may also add them in
// y's own 16 bits (OUTPUT_TYPE, INPLACE), and dense.h promises f32. Algorithms that do not split
// stay on offer whatever the mask.
inline constexpr std::uint32_t kReductionSchemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

cublasStatus_t make_preferences(std::size_t workspace_bytes, const DenseAlignment& alignment,
                                cublasLtMatmulPreferenceOpaque_t* preferences);

}  // namespace servelab::kernels::cuda

#endif  // SERVELAB_KERNELS_CUDA_DENSE_PREFERENCES_H_
