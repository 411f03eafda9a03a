// The ways to compute a batch's LoRA, one row of a table each: what sets them apart is read from
// there by the kernels, the cost models and whoever lists them.
#ifndef SERVELAB_KERNELS_LORA_KIND_H_
#define SERVELAB_KERNELS_LORA_KIND_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace servelab::kernels {

enum class LoraKind : std::uint8_t {
  kBgmv,    // batched gather, every row padded to the batch's largest rank (Punica 4)
  kMbgmv,   // batched gather, each row at its own rank (S-LoRA 4)
  kSgmv,    // segmented gather: rows of one adapter together, so that its weights are read once
  kEinsum,  // every adapter of the batch over every row, then a one-hot mask (dLoRA's artifact)
};

struct LoraTraits {
  LoraKind kind;
  const char* name;
  bool by_row;     // row by row; else many rows of one pair at a time
  bool padded;     // at the batch's largest rank; else each pair at its own
  bool all_pairs;  // every distinct pair over all rows; else each row's own
};

// Not inline: code for one instruction set shares no symbols with others'.
constexpr std::array<LoraTraits, 4> kLoraKinds = {{
    {LoraKind::kBgmv, "bgmv", true, true, false},
    {LoraKind::kMbgmv, "mbgmv", true, false, false},
    {LoraKind::kSgmv, "sgmv", false, false, false},
    {LoraKind::kEinsum, "einsum", false, true, true},
}};
constexpr const LoraTraits& traits(LoraKind kind) {
  return kLoraKinds[static_cast<std::size_t>(kind)];
}

}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_LORA_KIND_H_
