#include "engine/backend/cost/caching_allocator.h"

#include <set>

namespace servelab {
namespace {

Bytes round_up(Bytes bytes, Bytes unit) { return (bytes + unit - 1) / unit * unit; }

Bytes segment_for(Bytes bytes) {
  if (bytes <= kMiB) return 2 * kMiB;
  return bytes < 10 * kMiB ? 20 * kMiB : round_up(bytes, 2 * kMiB);
}

}  // namespace

Bytes reserved_in_segments(std::span<const Bytes> tensors) {
  constexpr Bytes kUnit = 512;
  std::multiset<Bytes> small, large;  // free pieces
  Bytes reserved = 0;
  for (const Bytes tensor : tensors) {
    const Bytes bytes = round_up(tensor, kUnit);
    std::multiset<Bytes>& pieces = bytes <= kMiB ? small : large;
    const auto fit = pieces.lower_bound(bytes);
    Bytes piece = segment_for(bytes);
    if (fit == pieces.end()) {
      reserved += piece;
    } else {
      piece = *fit;
      pieces.erase(fit);
    }
    if (piece > bytes) pieces.insert(piece - bytes);
  }
  return reserved;
}

}  // namespace servelab
