// What the linear layers of a run are computed with, and which of that is fastest here.
#ifndef SERVELAB_KERNELS_CHOICE_H_
#define SERVELAB_KERNELS_CHOICE_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops.h"

namespace servelab::kernels {

struct KernelChoice {
  GemmLibrary gemm = GemmLibrary::kNative;
  Isa isa = Isa::kReference;  // of everything else, and of linear layers where gemm is kNative
  bool operator==(const KernelChoice&) const = default;
};

std::string text(const KernelChoice& choice);  // "native avx512-bf16-dot"
// The inverse. Nothing for what is unknown, not supported here or not built in.
std::optional<KernelChoice> parse_choice(std::string_view text);

// All that compute linear layers of `type` here: our kernels on best_isa() first, then on the table
// that multiplies bf16 in the other way, then the libraries.
std::vector<KernelChoice> kernel_choices(DType type);

// Whether each row of a product came out as the same bits at several numbers of rows.
bool keeps_rows_apart(const KernelChoice& choice, DType type);

// The fastest of kernel_choices(type) that keeps rows apart, by the mean of 1 to 128 rows on one
// core; a library only where it takes less than four fifths of the time of our kernels. Takes some
// tens of milliseconds, and its answer may differ from call to call where two are close: keep it.
KernelChoice fastest_kernels(DType type);

}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_CHOICE_H_
