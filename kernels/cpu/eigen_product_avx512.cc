#define Eigen EigenAvx512
#include "kernels/cpu/eigen_product_body.h"

namespace servelab::kernels {

void eigen_product_avx512(const float* w, int n, int k, const float* x, std::int64_t ldx, float* y,
                          std::int64_t ldy, int m, bool add) {
  multiply_by_eigen(w, n, k, x, ldx, y, ldy, m, add);
}

}  // namespace servelab::kernels
