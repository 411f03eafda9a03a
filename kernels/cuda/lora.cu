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

namespace {

// kEinsum's turns: of whole tiles of rows, as many as this has room for.
constexpr int kTurnRows = 64;
constexpr std::size_t kEinsumWorkspace = std::size_t{128} << 20;

std::size_t workspace_at_once(LoraKind kind, const LoraBatch& batch, int rows, int targets) {
  const std::int64_t copies = traits(kind).all_pairs ? batch.distinct : 1;
  const std::int64_t t_rows = copies * rows * targets;
  const auto width = static_cast<std::size_t>(batch.width);
  if (traits(kind).by_row) {
    return static_cast<std::size_t>(t_rows) * width * kRowSplits * sizeof(float);
  }
  const std::int64_t partial_rows = std::min(kMaxSegmentSplits * t_rows, kMostPartialRows);
  return width * (static_cast<std::size_t>(t_rows) * bytes_of(batch.type) +
                  static_cast<std::size_t>(partial_rows) * sizeof(float));
}

// Rows that `bytes` have room for at once; 0: not even a turn.
int rows_at_once(LoraKind kind, const LoraBatch& batch, int targets, std::size_t bytes) {
  if (workspace_at_once(kind, batch, batch.rows, targets) <= bytes) return batch.rows;
  if (!traits(kind).all_pairs) return 0;
  const std::size_t turns = bytes / workspace_at_once(kind, batch, kTurnRows, targets);
  return kTurnRows * static_cast<int>(turns);
}

cudaError_t run(const LoraCall& call, cudaStream_t stream) {
  return traits(call.kind).by_row ? lora_by_rows(call, stream) : lora_by_segments(call, stream);
}

// The call's next `rows`.
void move_on(LoraCall* call, int rows) {
  const auto bytes = [rows](std::int64_t ld, DType type) {
    return rows * ld * static_cast<std::int64_t>(bytes_of(type));
  };
  call->x = static_cast<const char*>(call->x) + bytes(call->ldx, call->batch.type);
  call->batch.slots += rows;
  for (int i = 0; i < call->count; ++i) {
    call->targets[i].y =
        static_cast<char*>(call->targets[i].y) + bytes(call->ldy, call->batch.y_type);
  }
}

}  // namespace

std::size_t lora_workspace(LoraKind kind, const LoraBatch& batch, int targets) {
  const std::size_t all = workspace_at_once(kind, batch, batch.rows, targets);
  if (!traits(kind).all_pairs) return all;
  return std::min(all,
                  std::max(kEinsumWorkspace, workspace_at_once(kind, batch, kTurnRows, targets)));
}

cudaError_t lora_with(SegmentShrink shrink, LoraKind kind, const LoraBatch& batch,
                      const LoraTarget* targets, int count, const void* x, std::int64_t ldx,
                      std::int64_t ldy, void* workspace, std::size_t workspace_bytes,
                      cudaStream_t stream) {
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
  const int turn = rows_at_once(kind, batch, count, workspace_bytes);
  if (turn == 0) return cudaErrorInvalidValue;
  cudaError_t error = device_attribute(cudaDevAttrMultiProcessorCount, call.multiprocessors);
  for (int done = 0; done < batch.rows && error == cudaSuccess; done += turn) {
    if (done > 0) move_on(&call, turn);
    call.batch.rows = std::min(turn, batch.rows - done);
    error = run(call, stream);
  }
  return error;
}

cudaError_t lora(LoraKind kind, const LoraBatch& batch, const LoraTarget* targets, int count,
                 const void* x, std::int64_t ldx, std::int64_t ldy, void* workspace,
                 std::size_t workspace_bytes, cudaStream_t stream) {
  int major = 0;
  const cudaError_t error = device_attribute(cudaDevAttrComputeCapabilityMajor, major);
  if (error != cudaSuccess) return error;
  return lora_with(major == 9 ? kHopperShrink : SegmentShrink::kMma, kind, batch, targets, count, x,
                   ldx, ldy, workspace, workspace_bytes, stream);
}

}  // namespace servelab::kernels::cuda
