// Included once by each eigen_product_*.cc, which sets its own name for Eigen's namespace: so no
// template of Eigen's is shared between units that are compiled for different processors.
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>

#include "kernels/cpu/eigen_product.h"

namespace servelab::kernels {
namespace {

void multiply_by_eigen(const float* w, int n, int k, const float* x, std::int64_t ldx, float* y,
                       std::int64_t ldy, int m, bool add) {
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using Vector = Eigen::Matrix<float, Eigen::Dynamic, 1>;
  const Eigen::Map<const Matrix> weights(w, n, k);
  if (m == 1) {  // at run time Eigen would not choose its matrix-vector product
    const Eigen::Map<const Vector> in(x, k);
    Eigen::Map<Vector> out(y, n);
    if (!add) out.setZero();
    out.noalias() += weights * in;
    return;
  }
  const Eigen::Map<const Matrix, 0, Eigen::OuterStride<>> in(x, m, k, Eigen::OuterStride<>(ldx));
  Eigen::Map<Matrix, 0, Eigen::OuterStride<>> out(y, m, n, Eigen::OuterStride<>(ldy));
  if (!add) out.setZero();
  out.noalias() += in * weights.transpose();
}

}  // namespace
}  // namespace servelab::kernels
