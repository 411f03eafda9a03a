#include "kernels/cpu/linear.h"
#include "kernels/cpu/thread_buffer.h"
#include "kernels/ops.h"

#ifdef SERVELAB_HAVE_EIGEN
#include "kernels/cpu/eigen_product.h"
#endif

namespace servelab::kernels {

#ifdef SERVELAB_HAVE_EIGEN

namespace {

// Weights are f32 and row-major; a bf16 layer's are rounded to bf16 and widened.
class EigenLinear : public Linear {
 public:
  EigenLinear(DType type, int n, int k, int parts)
      : Linear(n, k, parts),
        type_(type),
        buffer_(static_cast<std::size_t>(n) * static_cast<std::size_t>(k) * sizeof(float)) {}

  void run(int part, const void* x, std::int64_t ldx, float* y, std::int64_t ldy, int m,
           Store store) override {
    const int columns = column_end(part) - column_begin(part);
    if (m <= 0 || columns <= 0) return;
    const auto* rows = static_cast<const float*>(x);
    if (type_ == DType::kBf16) {
      rows = widened(static_cast<const Bf16*>(x), ldx, m);
      ldx = k();
    }
    eigen_product(row(column_begin(part)), columns, k(), rows, ldx, y + column_begin(part), ldy, m,
                  store == Store::kAdd);
  }

  void pack(int part, DType source_type, const void* source, std::int64_t ld) override {
    const Ops& convert = ops(best_isa());
    const auto bytes = static_cast<std::int64_t>(bytes_of(source_type));
    for (int j = column_begin(part); j < column_end(part); ++j) {
      const auto* from = static_cast<const char*>(source) + j * ld * bytes;
      convert.widen(source_type, from, row(j), k());
      if (type_ == DType::kF32) continue;
      for (int i = 0; i < k(); ++i) row(j)[i] = to_float(to_bf16(row(j)[i]));
    }
  }

  void unpack(int part, float* out, std::int64_t ld) const override {
    for (int j = column_begin(part); j < column_end(part); ++j) {
      const float* from = row(j);
      for (int i = 0; i < k(); ++i) out[(j - column_begin(part)) * ld + i] = from[i];
    }
  }

 private:
  float* row(int column) const {
    return static_cast<float*>(buffer_.data()) + static_cast<std::int64_t>(column) * k();
  }

  const float* widened(const Bf16* x, std::int64_t ldx, int m) const {
    const auto size = static_cast<std::size_t>(m) * static_cast<std::size_t>(k());
    auto* out = static_cast<float*>(thread_buffer(size * sizeof(float)));
    for (int i = 0; i < m; ++i) {
      ops(best_isa()).widen(DType::kBf16, x + i * ldx, out + std::int64_t{i} * k(), k());
    }
    return out;
  }

  DType type_;
  WeightBuffer buffer_;
};

}  // namespace

bool built_with_eigen() { return true; }

std::unique_ptr<Linear> make_eigen_linear(DType type, int n, int k, int parts) {
  if (type == DType::kF16) return nullptr;
  return std::make_unique<EigenLinear>(type, n, k, parts);
}

#else

bool built_with_eigen() { return false; }

std::unique_ptr<Linear> make_eigen_linear(DType, int, int, int) { return nullptr; }

#endif

}  // namespace servelab::kernels
