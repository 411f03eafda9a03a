// Linear layers: y[m, n] = x[m, k] * W[n, k]^T (+ y), f32 accumulation.
//
// Batch invariance: each y[i, j] is one accumulator that starts from y (kAdd) or zero (kSet) and
// takes k in one order, whatever m and the column range are: ascending or, where bf16 is multiplied
// by dot products, in ascending pairs. So a row's result never depends, not in one bit, on the
// other rows of the batch, on chunking, or on how columns are shared between threads. bf16 products
// are exact in f32; each is added with one rounding, so that every table gives the bits of
// ref::gemm or, by dot products, of ref::gemm_pairs. (f32 products are rounded too there.)
#ifndef SERVELAB_KERNELS_GEMM_H_
#define SERVELAB_KERNELS_GEMM_H_

#include <cstdint>
#include <memory>

#include "kernels/panels.h"

namespace servelab::kernels {

enum class Store : std::uint8_t { kSet, kAdd };

// Panels [panel_begin, panel_end) of `w`. x: elements of w.type, row stride ldx elements. y: f32,
// row stride ldy; columns past w.n are not written. m >= 0. Not in place.
using GemmFn = void(const Panels& w, const void* x, std::int64_t ldx, float* y, std::int64_t ldy,
                    int m, Store store, int panel_begin, int panel_end);

// --- the seam: a linear layer whose library can be chosen ---

enum class GemmLibrary : std::uint8_t {
  kNative,  // this folder's kernels on panels; batch invariant
  kEigen,   // portable; f32 arithmetic (bf16 weights are widened when packed)
  kOneDnn,  // prepacked oneDNN matmul; only where it was found at build time
};
inline constexpr GemmLibrary kGemmLibraries[] = {GemmLibrary::kNative, GemmLibrary::kOneDnn,
                                                 GemmLibrary::kEigen};
const char* name(GemmLibrary library);  // "native", "eigen", "onednn"
bool built_with(GemmLibrary library);

// W of one linear layer, packed for a library and cut into `parts` column ranges, one for each
// thread. Threads may call run() for different parts at the same time.
class Linear {
 public:
  virtual ~Linear() = default;
  int n() const { return n_; }
  int k() const { return k_; }
  int parts() const { return parts_; }

  // Columns of `part`: panels of 16, dealt as evenly as whole panels allow. Empty when there are
  // more parts than panels.
  int column_begin(int part) const;
  int column_end(int part) const;

  // y[:, columns of part] of y[m, n]. x has the layer's type.
  virtual void run(int part, const void* x, std::int64_t ldx, float* y, std::int64_t ldy, int m,
                   Store store) = 0;

  // Replaces W's columns (rows of the row-major source) of `part`; other parts are untouched.
  // `source` is the whole W[n, k]. Not at the same time as run() of that part.
  virtual void pack(int part, DType source_type, const void* source, std::int64_t ld) = 0;

  // W's columns of `part` as row-major f32 [column_end - column_begin, k]: exactly the values that
  // run() multiplies with.
  virtual void unpack(int part, float* out, std::int64_t ld) const = 0;

 protected:
  Linear(int n, int k, int parts) : n_(n), k_(k), parts_(parts) {}

 private:
  int n_;
  int k_;
  int parts_;
};

struct Ops;

// An unset layer of `type` (kF32 or kBf16); pack() every part before run(). `ops` is used by
// kNative only. Null when the library was not built in or lacks the type.
std::unique_ptr<Linear> make_linear(GemmLibrary library, const Ops& ops, DType type, int n, int k,
                                    int parts);

}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_GEMM_H_
