#define Eigen EigenPortable
#include "kernels/cpu/eigen_product_body.h"
#include "kernels/ops.h"

namespace servelab::kernels {

#ifdef SERVELAB_HAVE_X86
EigenProductFn eigen_product_avx512;  // in eigen_product_avx512.cc
#endif

void eigen_product(const float* w, int n, int k, const float* x, std::int64_t ldx, float* y,
                   std::int64_t ldy, int m, bool add) {
#ifdef SERVELAB_HAVE_X86
  if (supported(Isa::kAvx512Bf16)) {
    eigen_product_avx512(w, n, k, x, ldx, y, ldy, m, add);
    return;
  }
#endif
  multiply_by_eigen(w, n, k, x, ldx, y, ldy, m, add);
}

}  // namespace servelab::kernels
