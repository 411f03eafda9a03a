// The shrink of SGMV and the einsum for compute capability 9.0: t^T = A x^T by wgmma, so that a
// piece's rows, of which there may be few, are the instruction's N (16 or 64) and the ranks its M,
// padded with zeros to 64 or 128 in shared memory only.
//
// x comes by tensor copies: one map serves all pieces, made for each call and passed by value. A is
// at another address for each piece, known to the device only, so that a map would have to be made
// for each adapter beforehand or rewritten in the kernel; A comes by cp.async into the same layout.
#include <algorithm>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/lora_segments.cuh"
#include "kernels/cuda/tensor_map.h"

namespace servelab::kernels::cuda {
namespace {

constexpr int kRowBytes = kTileDepth * 2;
constexpr int kRanks = 64;  // of one product

// Shared memory: kStages tiles of x [kRows] and A [64 kBlocks], then a barrier for each.
template <int kRows, int kBlocks>
struct Stages {
  static constexpr int kXBytes = kRows * kRowBytes;
  static constexpr int kBytes = kXBytes + kBlocks * kRanks * kRowBytes;
  static constexpr int kAllBytes = kStages * (kBytes + static_cast<int>(sizeof(std::uint64_t)));
};

// Element (rank, row) of t^T from the lane's sums of one product; see write_t() of the other
// shrink.
template <class T, int kRows>
__device__ inline void write_columns(const LoraCall& call, const Piece& piece, int first_row,
                                     int end_row, int first_rank, int columns, int split,
                                     int splits, float scale, const float (&sums)[kRows / 2]) {
  const Intermediate to = intermediate(call);
  const int width = call.batch.width;
  const std::int64_t target_row = blockIdx.z * to.rows + piece.t_row - piece.begin;
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) {
    const int row = first_row + i / 4 * 8 + 2 * (lane_id() % 4) + i % 2;
    const int rank = first_rank + 16 * warp_id() + i / 2 % 2 * 8 + lane_id() / 4;
    if (row >= end_row || rank >= columns) continue;
    const bool own = call.kind != LoraKind::kEinsum || call.batch.slots[row] == piece.slot;
    const float value = own ? scale * sums[i] : 0.0f;
    const std::int64_t element = (target_row + row) * width + rank;
    if (splits == 1) {
      static_cast<T*>(to.t)[element] = from_f32<T>(value);
    } else {
      to.partial[split * call.count * to.rows * width + element] = value;
    }
  }
}

// As shrink_segments_kernel, with tiles of kRows rows and up to 64 kBlocks ranks.
template <class T, int kRows, int kBlocks>
__global__ void __launch_bounds__(kShrinkThreads)
    wgmma_shrink_kernel(const __grid_constant__ LoraCall call,
                        const __grid_constant__ TensorMap x_map, int splits) {
  using Layout = Stages<kRows, kBlocks>;
  const Piece piece = piece_of(call, static_cast<int>(blockIdx.y));
  const int split = static_cast<int>(blockIdx.x) % splits;
  const int begin = static_cast<int>(blockIdx.x) / splits * kRows;  // within the piece
  if (begin >= piece.rows) return;
  const LoraTarget& target = call.targets[blockIdx.z];
  const LoraPair pair = load_pair(target.pairs + piece.slot);
  const int columns = columns_of(call, pair);
  if (columns == 0) return;

  const int row = piece.begin + begin;
  const int all_steps = steps_of(target.in);
  const int first = all_steps * split / splits;
  const int steps = all_steps * (split + 1) / splits - first;
  const T* const a = static_cast<const T*>(pair.a);
  char* const shared = shared_memory();
  auto* const barriers = reinterpret_cast<std::uint64_t*>(shared + kStages * Layout::kBytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) copy_barrier_init(barriers + i);
  }
  block_barrier();
  const auto fetch = [&](int step) {
    if (step < steps) {
      char* const stage = shared + step % kStages * Layout::kBytes;
      const int k = (first + step) * kTileDepth;
      if (threadIdx.x == 0) {
        copy_barrier_expect(barriers + step % kStages, Layout::kXBytes);
        // Rows past the piece's come along: their sums are not written. Elements past `in` are
        // zeros.
        copy_box(stage, x_map, k, row, barriers + step % kStages);
      }
      copy_tile<kBlocks * kRanks>(stage + Layout::kXBytes, a + k, target.in, columns,
                                  target.in - k);
    }
    copy_async_commit();
  };
  float sums[kBlocks][kRows / 2] = {};
  for (int step = 0; step < kStages - 1; ++step) fetch(step);
  for (int step = 0; step < steps; ++step) {
    copy_async_wait<kStages - 2>();
    publish_to_products();
    copy_barrier_wait(barriers + step % kStages, step / kStages);
    // The products of the step before have read their stage, which the next copies overwrite.
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) products_wait(sums[i]);
    block_barrier();
    fetch(step + kStages - 1);
    const char* const stage = shared + step % kStages * Layout::kBytes;
    products_begin();
#pragma unroll
    for (int k = 0; k < kTileDepth / 16; ++k) {
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        multiply_rows<T>(sums[i],
                         rows_for_product(stage + Layout::kXBytes + i * kRanks * kRowBytes, k),
                         rows_for_product(stage, k));
      }
    }
    products_commit();
  }
  copy_async_wait<0>();
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    products_wait(sums[i]);
    write_columns<T, kRows>(call, piece, row, piece.begin + piece.rows, i * kRanks, columns, split,
                            splits, pair.scale, sums[i]);
  }
}

// `longest`: a bound of the pieces' rows.
template <class T, int kRows, int kBlocks>
cudaError_t start(const LoraCall& call, int pieces, int longest, int splits, cudaStream_t stream) {
  TensorMap map;
  const cudaError_t error = make_tensor_map(call.batch.type, call.x, call.batch.rows,
                                            call.targets[0].in, call.ldx, kRows, map);
  if (error != cudaSuccess) return error;
  return launch(wgmma_shrink_kernel<T, kRows, kBlocks>,
                dim3(blocks_for(longest, kRows) * static_cast<unsigned>(splits),
                     static_cast<unsigned>(pieces), static_cast<unsigned>(call.count)),
                kShrinkThreads, Stages<kRows, kBlocks>::kAllBytes, stream, call, map, splits);
}

}  // namespace

cudaError_t wgmma_shrink(const LoraCall& call, const Pieces& pieces, int splits,
                         cudaStream_t stream) {
  constexpr int kFew = 16;
  const int longest = call.kind == LoraKind::kEinsum
                          ? call.batch.rows
                          : std::min(call.batch.max_segment_rows, call.batch.rows);
  return with_half_type(call.batch.type, [&](auto element) {
    using T = decltype(element);
    const bool wide = call.batch.width > kRanks;
    if (longest <= kFew) {
      return wide ? start<T, kFew, 2>(call, pieces.count, longest, splits, stream)
                  : start<T, kFew, 1>(call, pieces.count, longest, splits, stream);
    }
    return wide ? start<T, kTileRows, 2>(call, pieces.count, longest, splits, stream)
                : start<T, kTileRows, 1>(call, pieces.count, longest, splits, stream);
  });
}

}  // namespace servelab::kernels::cuda
