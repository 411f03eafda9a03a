#include "kernels/cpu/linear.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "kernels/ops.h"

namespace servelab::kernels {
namespace {

class NativeLinear : public Linear {
 public:
  NativeLinear(const Ops& ops, DType type, int n, int k, int parts)
      : Linear(n, k, parts), ops_(ops), type_(type), buffer_(packed_bytes(type, n, k)) {}

  void run(int part, const void* x, std::int64_t ldx, float* y, std::int64_t ldy, int m,
           Store store) override {
    ops_.gemm(panels(), x, ldx, y, ldy, m, store, panel_begin(part), panel_begin(part + 1));
  }

  void pack(int part, DType source_type, const void* source, std::int64_t ld) override {
    pack_panels(source_type, source, ld, n(), k(), type_, buffer_.data(), panel_begin(part),
                panel_begin(part + 1));
  }

  void unpack(int part, float* out, std::int64_t ld) const override {
    unpack_panels(panels(), out - column_begin(part) * ld, ld, panel_begin(part),
                  panel_begin(part + 1));
  }

 private:
  Panels panels() const { return {type_, n(), k(), buffer_.data()}; }
  int panel_begin(int part) const { return panels_of(part == parts() ? n() : column_begin(part)); }

  const Ops& ops_;
  DType type_;
  WeightBuffer buffer_;
};

}  // namespace

WeightBuffer::WeightBuffer(std::size_t bytes) {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const std::size_t grain = bytes >= kHugePage / 2 ? kHugePage : 64;
  const std::size_t size = std::max(grain, (bytes + grain - 1) / grain * grain);
  data_.reset(std::aligned_alloc(grain, size));
  if (data_ == nullptr) throw std::bad_alloc();
#ifdef __linux__
  if (grain == kHugePage) madvise(data_.get(), size, MADV_HUGEPAGE);  // a wish: failing is fine
#endif
}

void WeightBuffer::Free::operator()(void* p) const { std::free(p); }

int Linear::column_begin(int part) const {
  const auto panel = std::int64_t{panels_of(n_)} * part / parts_;
  return std::min(n_, static_cast<int>(panel) * kPanelColumns);
}

int Linear::column_end(int part) const { return part + 1 == parts_ ? n_ : column_begin(part + 1); }

const char* name(GemmLibrary library) {
  switch (library) {
    case GemmLibrary::kNative:
      return "native";
    case GemmLibrary::kEigen:
      return "eigen";
    case GemmLibrary::kOneDnn:
      return "onednn";
  }
  return "?";
}

bool built_with(GemmLibrary library) {
  switch (library) {
    case GemmLibrary::kNative:
      return true;
    case GemmLibrary::kEigen:
      return built_with_eigen();
    case GemmLibrary::kOneDnn:
      return built_with_onednn();
  }
  return false;
}

std::unique_ptr<Linear> make_native_linear(const Ops& ops, DType type, int n, int k, int parts) {
  if (type == DType::kF16) return nullptr;
  return std::make_unique<NativeLinear>(ops, type, n, k, parts);
}

std::unique_ptr<Linear> make_linear(GemmLibrary library, const Ops& ops, DType type, int n, int k,
                                    int parts) {
  switch (library) {
    case GemmLibrary::kNative:
      return make_native_linear(ops, type, n, k, parts);
    case GemmLibrary::kEigen:
      return make_eigen_linear(type, n, k, parts);
    case GemmLibrary::kOneDnn:
      return make_onednn_linear(type, n, k, parts);
  }
  return nullptr;
}

}  // namespace servelab::kernels
