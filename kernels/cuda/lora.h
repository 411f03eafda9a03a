// LoRA on the device: y += scale * (x A^T) B^T for each row with its own adapter, as shrink
// (t = x A^T) and expand (y += scale * t B^T) (Punica 4, S-LoRA 4, CaraServe 5).
//
// All functions return at once with the launch's error; pointers are device memory unless said.
#ifndef SERVELAB_KERNELS_CUDA_LORA_H_
#define SERVELAB_KERNELS_CUDA_LORA_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/lora.h"

namespace servelab::kernels::cuda {

// One adapter's pair for one linear layer, row-major: a[width, in], b[out, width]. `width` is the
// rank rounded up to a multiple of 8, or the width of a padded slot, at most kMaxLoraWidth; rows of
// `a` and columns of `b` past the rank are zero. Both 16-byte aligned.
struct LoraPair {
  const void* a = nullptr;
  const void* b = nullptr;
  int rank = 0;  // 0: the adapter leaves this layer alone
  int width = 0;
  float scale = 0;
};
inline constexpr int kMaxLoraWidth = 128;

// A linear layer that shares its input with others (q, k, v; gate, up).
struct LoraTarget {
  const LoraPair* pairs = nullptr;  // [slots], 16-byte aligned
  int in = 0;                       // a multiple of 8, the same for all targets of a call
  int out = 0;                      // a multiple of 8
  void* y = nullptr;                // of y_type, 16-byte aligned; row stride ldy of the batch
};
inline constexpr int kMaxLoraTargets = 3;

// Rows [0, rows) of x and y. The row kinds (kBgmv, kMbgmv) go row by row; SGMV goes by segments of
// equal slots.
struct LoraBatch {
  DType type = DType::kBf16;    // of x, A, B: kBf16 or kF16
  DType y_type = DType::kBf16;  // of y: `type` or kF32
  int rows = 0;
  int width = 0;                        // the batch's largest pair.width
  const std::int32_t* slots = nullptr;  // [rows]: each row's adapter slot, -1: base model; not
                                        // read by kSgmv
  int segments = 0;                     // kSgmv: at most 65535
  const std::int32_t* segment_begin = nullptr;   // [segments + 1]: rows; may be empty, ascending
  const std::int32_t* segment_slots = nullptr;   // [segments], -1: base model
  int max_segment_rows = 0;                      // host: a bound of every segment's rows
  int distinct = 0;                              // kEinsum: adapters in the batch, at most 65535
  const std::int32_t* distinct_slots = nullptr;  // [distinct]
};

// Bytes of `workspace` (16-byte aligned) for `targets` layers: t, and partial sums of split-k.
// Ascends with rows, width, segments and distinct; what lies in it before does not matter. kEinsum,
// whose t has every row for each adapter, gets at most 128 MiB, or what 64 rows take.
std::size_t lora_workspace(LoraKind kind, const LoraBatch& batch, int targets);

// kBgmv reads every row's adapter at `width` (padding included, as far as its slot is wide), kMbgmv
// at its own rank, kSgmv by segments on tensor cores, kEinsum all adapters for all rows and then a
// one-hot mask, as dLoRA's artifact. The sums are f32; kSgmv and kEinsum round t to `type` between
// the halves. The same call gives the same bits every time; a row of kBgmv or kMbgmv gets the same
// bits in every batch. kEinsum takes its rows in as many turns as `workspace_bytes` asks for.
//
// x: 16-byte aligned, row stride ldx elements; ldx and ldy are multiples of 8. `targets` is host
// memory, count <= kMaxLoraTargets. cudaErrorNotSupported for other types,
// cudaErrorInvalidValue for shapes or alignments that are not as said here, and for a workspace
// that is too small.
cudaError_t lora(LoraKind kind, const LoraBatch& batch, const LoraTarget* targets, int count,
                 const void* x, std::int64_t ldx, std::int64_t ldy, void* workspace,
                 std::size_t workspace_bytes, cudaStream_t stream);

// out[out_rows, in] = w + scale * B A in f32, rounded once; `out` may be `w`, and both are 16-byte
// aligned; `in` is a multiple of 8. A pair of rank 0 copies. Restoring is a copy of the
// base weights, which is exact. `pair` is host memory that points to device memory.
cudaError_t lora_merge(DType type, const LoraPair& pair, int out_rows, int in, const void* w,
                       void* out, cudaStream_t stream);

}  // namespace servelab::kernels::cuda

#endif  // SERVELAB_KERNELS_CUDA_LORA_H_
