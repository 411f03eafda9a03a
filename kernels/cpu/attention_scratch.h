// Where the pieces of attention's scratch lie. Shared by the portable code that sizes it and the
// kernels that use it.
#ifndef SERVELAB_KERNELS_CPU_ATTENTION_SCRATCH_H_
#define SERVELAB_KERNELS_CPU_ATTENTION_SCRATCH_H_

#include <cstddef>

#include "kernels/attention.h"

namespace servelab::kernels {
namespace {  // no symbol is shared between units that are compiled for different processors

// Query rows (a query of one head) that share a packed tile. More would hide the packing better,
// but their state has to stay in the L2 cache.
constexpr int kQueryRows = 128;

struct AttentionScratch {
  int queries;  // per block; each has `group` rows
  // Byte offsets of:
  std::size_t keys;    // panels of kKeyTile columns, k = head_dim
  std::size_t values;  // panels of head_dim columns, k = kKeyTile
  std::size_t q;       // words [rows][head_dim], which pairs fill half
  std::size_t scores;  // f32 [rows][kKeyTile], later words of the weights that they become
  std::size_t out;     // f32 [rows][head_dim], not yet divided by the sums
  std::size_t maxima;  // f32 [rows]
  std::size_t sums;    // f32 [rows][16], to be added up in the end
  std::size_t bytes;   // of it all
};

constexpr AttentionScratch layout_attention_scratch(DType type, int head_dim, int group) {
  const std::size_t element = bytes_of(type);
  const auto width = static_cast<std::size_t>(head_dim);
  constexpr std::size_t kTile = kKeyTile;
  AttentionScratch s{};
  s.queries = group < kQueryRows ? kQueryRows / group : 1;
  const auto rows = static_cast<std::size_t>(s.queries) * static_cast<std::size_t>(group);
  const auto take = [&s](std::size_t bytes) {
    const std::size_t at = s.bytes;
    s.bytes += (bytes + 63) / 64 * 64;
    return at;
  };
  s.keys = take(kTile * width * element);
  s.values = take(kTile * width * element);
  s.q = take(rows * width * sizeof(float));
  s.scores = take(rows * kTile * sizeof(float));
  s.out = take(rows * width * sizeof(float));
  s.maxima = take(rows * sizeof(float));
  s.sums = take(rows * 16 * sizeof(float));
  return s;
}

}  // namespace
}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_CPU_ATTENTION_SCRATCH_H_
