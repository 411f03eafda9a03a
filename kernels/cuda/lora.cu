#include <algorithm>

#include "kernels/cuda/lora_kernels.h"

namespace servelab::kernels::cuda {
namespace {

bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

cudaError_t check_types(const LoraBatch& batch) {
  const bool inputs = batch.type == DType::kBf16 || batch.type == DType::kF16;
  const bool outputs = batch.y_type == batch.type || batch.y_type == DType::kF32;
  return inputs && outputs ? cudaSuccess : cudaErrorNotSupported;
}

bool valid(LoraKind kind, const LoraBatch& batch) {
  if (batch.rows < 0 || batch.width < 0 || batch.width % 8 != 0 || batch.width > kMaxLoraWidth) {
    return false;
  }
  constexpr int kMaxPieces = 65535;  // a dimension of the grid
  if (kind == LoraKind::kSgmv) {
    return batch.segments >= 0 && batch.segments <= kMaxPieces && batch.max_segment_rows >= 0;
  }
  return !traits(kind).all_pairs || (batch.distinct >= 0 && batch.distinct <= kMaxPieces);
}

bool valid(const LoraTarget& target, const LoraTarget& first) {
  return target.in > 0 && target.in % 8 == 0 && target.in == first.in && target.out > 0 &&
         target.out % 8 == 0 && aligned(target.y) && aligned(target.pairs);
}

bool nothing_to_do(LoraKind kind, const LoraBatch& batch, int count) {
  if (batch.rows == 0 || batch.width == 0 || count == 0) return true;
  if (kind == LoraKind::kSgmv) return batch.segments == 0 || batch.max_segment_rows == 0;
  return traits(kind).all_pairs && batch.distinct == 0;
}

cudaError_t device_attribute(cudaDeviceAttr which, int& value) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  return error == cudaSuccess ? cudaDeviceGetAttribute(&value, which, device) : error;
}

}  // namespace

std::size_t lora_workspace(LoraKind kind, const LoraBatch& batch, int targets) {
  const auto elements = static_cast<std::size_t>(batch.rows) *
                        static_cast<std::size_t>(batch.width) * static_cast<std::size_t>(targets);
  if (traits(kind).by_row) return elements * kRowSplits * sizeof(float);
  const auto copies =
      traits(kind).all_pairs ? static_cast<std::size_t>(batch.distinct) : std::size_t{1};
  return elements * copies * (kMaxSegmentSplits * sizeof(float) + bytes_of(batch.type));
}

cudaError_t lora_with(SegmentShrink shrink, LoraKind kind, const LoraBatch& batch,
                      const LoraTarget* targets, int count, const void* x, std::int64_t ldx,
                      std::int64_t ldy, void* workspace, cudaStream_t stream) {
  if (const cudaError_t error = check_types(batch); error != cudaSuccess) return error;
  if (!valid(kind, batch) || count < 0 || count > kMaxLoraTargets || ldx % 8 != 0 || ldy % 8 != 0 ||
      !aligned(x) || !aligned(workspace)) {
    return cudaErrorInvalidValue;
  }
  LoraCall call{kind, count, 0, shrink, batch, {}, x, ldx, ldy, workspace};
  for (int i = 0; i < count; ++i) {
    if (!valid(targets[i], targets[0])) return cudaErrorInvalidValue;
    call.targets[i] = targets[i];
  }
  if (nothing_to_do(kind, batch, count)) return cudaSuccess;
  const cudaError_t error = device_attribute(cudaDevAttrMultiProcessorCount, call.multiprocessors);
  if (error != cudaSuccess) return error;
  return traits(kind).by_row ? lora_by_rows(call, stream) : lora_by_segments(call, stream);
}

cudaError_t lora(LoraKind kind, const LoraBatch& batch, const LoraTarget* targets, int count,
                 const void* x, std::int64_t ldx, std::int64_t ldy, void* workspace,
                 cudaStream_t stream) {
  int major = 0;
  const cudaError_t error = device_attribute(cudaDevAttrComputeCapabilityMajor, major);
  if (error != cudaSuccess) return error;
  return lora_with(major == 9 ? kHopperShrink : SegmentShrink::kMma, kind, batch, targets, count, x,
                   ldx, ldy, workspace, stream);
}

}  // namespace servelab::kernels::cuda
