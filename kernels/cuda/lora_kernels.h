// What the LoRA kernels' sources share: the call as the kernels see it. Not for other callers.
#ifndef SERVELAB_KERNELS_CUDA_LORA_KERNELS_H_
#define SERVELAB_KERNELS_CUDA_LORA_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/lora.h"

namespace servelab::kernels::cuda {

// How kSgmv and kEinsum compute t.
enum class SegmentShrink : std::uint8_t {
  kMma,    // mma.sync
  kWgmma,  // compute capability 9.0: tensor copies and wgmma
};
// For 9.0. The wgmma shrink has run only on the host, by the documented layouts; it becomes the
// default here when a GPU has confirmed and timed it (tests/gpu/lora_test.cc, servelab_cuda_bench).
inline constexpr SegmentShrink kHopperShrink = SegmentShrink::kMma;

// Everything of a call, by value.
struct LoraCall {
  LoraKind kind = LoraKind::kBgmv;
  int count = 0;
  int multiprocessors = 0;
  SegmentShrink shrink = SegmentShrink::kMma;
  LoraBatch batch;
  LoraTarget targets[kMaxLoraTargets];
  const void* x = nullptr;
  std::int64_t ldx = 0;
  std::int64_t ldy = 0;
  void* workspace = nullptr;
};

// kBgmv, kMbgmv: sums over `in` are split in this many parts, whatever the batch, so that a row's
// bits do not depend on it. Workspace: f32 [kRowSplits][targets][rows][width].
inline constexpr int kRowSplits = 4;
cudaError_t lora_by_rows(const LoraCall& call, cudaStream_t stream);

// kSgmv, kEinsum. A piece is a segment, or one distinct adapter over all rows. Rows of t: those of
// the batch, for kEinsum once for each distinct adapter. Workspace: t of `type`
// [targets][t rows][width], then f32 partial sums [splits][targets][t rows][width].
inline constexpr int kMaxSegmentSplits = 8;
// Rows of partial sums, of all splits and targets: large batches, whose tiles fill the device, are
// not split, and need no memory for it.
inline constexpr std::int64_t kMostPartialRows = 512 * 64;
cudaError_t lora_by_segments(const LoraCall& call, cudaStream_t stream);

// lora() with a given shrink, for tests and benchmarks. cudaErrorNotSupported where the device
// lacks it.
cudaError_t lora_with(SegmentShrink shrink, LoraKind kind, const LoraBatch& batch,
                      const LoraTarget* targets, int count, const void* x, std::int64_t ldx,
                      std::int64_t ldy, void* workspace, std::size_t workspace_bytes,
                      cudaStream_t stream);

}  // namespace servelab::kernels::cuda

#endif  // SERVELAB_KERNELS_CUDA_LORA_KERNELS_H_
