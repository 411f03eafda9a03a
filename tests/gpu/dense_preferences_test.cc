// Needs cuBLASLt and no GPU.
#include "kernels/cuda/dense_preferences.h"

#include <gtest/gtest.h>

namespace servelab::kernels::cuda {
namespace {

TEST(DensePreferences, PartialSumsAreAddedInF32AndNeverIn16Bits) {
  cublasLtMatmulPreferenceOpaque_t preferences;
  ASSERT_EQ(make_preferences(1 << 20, {16, 256, 8}, &preferences), CUBLAS_STATUS_SUCCESS);
  const auto get = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    std::size_t written = 0;
    EXPECT_EQ(cublasLtMatmulPreferenceGetAttribute(&preferences, attribute, &value, sizeof(value),
                                                   &written),
              CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(written, sizeof(value));
    return value;
  };
  const std::uint32_t schemes = get(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{0});
  EXPECT_EQ(schemes & CUBLASLT_REDUCTION_SCHEME_INPLACE, 0u);
  EXPECT_EQ(schemes & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, 0u);
  EXPECT_NE(schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 0u);
  EXPECT_EQ(get(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{0}), 1u << 20);
  EXPECT_EQ(get(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::uint32_t{0}), 16u);
  EXPECT_EQ(get(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, std::uint32_t{0}), 256u);
  EXPECT_EQ(get(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, std::uint32_t{0}), 8u);
}

}  // namespace
}  // namespace servelab::kernels::cuda
