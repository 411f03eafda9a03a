// SGMV and the one-hot einsum on tensor cores: mma.m16n8k16, tiles through cp.async. The Hopper
// variant of the shrink is in lora_wgmma.cu.
#include <algorithm>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/lora_segments.cuh"

namespace servelab::kernels::cuda {
namespace {

// sums[16 rows of the warp][8 kTiles columns] += x A^T over one stage.
template <class T, int kTiles>
__device__ inline void multiply_stage(char* x, char* a, int columns, float (&sums)[kTiles][4]) {
  const int lane = lane_id();
#pragma unroll
  for (int k = 0; k < kTileDepth / 16; ++k) {
    std::uint32_t left[4];
    load_matrices(left, chunk_at(x, 16 * warp_id() + lane % 16, 2 * k + lane / 16));
#pragma unroll
    for (int tile = 0; tile < kTiles; tile += 2) {
      if (8 * tile >= columns) break;
      std::uint32_t right[4];
      load_matrices(right, chunk_at(a, 8 * tile + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
      multiply_add<T>(sums[tile], left, right[0], right[1]);
      multiply_add<T>(sums[tile + 1], left, right[2], right[3]);
    }
  }
}

// Writes the warp's 16 rows of t, times `scale`; rows of other slots (kEinsum) become zeros.
template <class T, int kTiles>
__device__ inline void write_t(const LoraCall& call, const Piece& piece, int row, int end,
                               int columns, int split, int splits, float scale,
                               const float (&sums)[kTiles][4]) {
  const Intermediate to = intermediate(call);
  const int width = call.batch.width;
  const auto target = static_cast<std::int64_t>(blockIdx.z);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = row + lane_id() / 4 + 8 * half;
    if (at >= end) continue;
    const bool own = call.kind != LoraKind::kEinsum || call.batch.slots[at] == piece.slot;
    const std::int64_t t_row = target * to.rows + piece.t_row + at - piece.begin;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (8 * tile >= columns) break;
      const float2 pair = {own ? scale * sums[tile][2 * half] : 0.0f,
                           own ? scale * sums[tile][2 * half + 1] : 0.0f};
      const std::int64_t element = t_row * width + 8 * tile + 2 * (lane_id() % 4);
      if (splits == 1) {
        *reinterpret_cast<std::uint32_t*>(static_cast<T*>(to.t) + element) =
            pack<T>(pair.x, pair.y);
      } else {
        float* const partial = to.partial + split * call.count * to.rows * width;
        *reinterpret_cast<float2*>(partial + element) = pair;
      }
    }
  }
}

// Grid: tiles of rows * splits, pieces, targets. t's rows, up to 8 kTiles columns, over this
// block's part of `in`. Shared memory: kStages tiles of x and of A.
template <class T, int kTiles>
__global__ void __launch_bounds__(kShrinkThreads)
    shrink_segments_kernel(const __grid_constant__ LoraCall call, int splits) {
  constexpr int kXBytes = kTileRows * kTileDepth * 2;
  constexpr int kStageBytes = kXBytes + 8 * kTiles * kTileDepth * 2;
  const Piece piece = piece_of(call, static_cast<int>(blockIdx.y));
  const int split = static_cast<int>(blockIdx.x) % splits;
  const int begin = static_cast<int>(blockIdx.x) / splits * kTileRows;  // within the piece
  if (begin >= piece.rows) return;
  const LoraTarget& target = call.targets[blockIdx.z];
  const LoraPair pair = load_pair(target.pairs + piece.slot);
  const int columns = columns_of(call, pair);
  if (columns == 0) return;

  const int rows = min(kTileRows, piece.rows - begin);
  const int all_steps = steps_of(target.in);
  const int first = all_steps * split / splits;
  const int steps = all_steps * (split + 1) / splits - first;
  const T* const x = static_cast<const T*>(call.x) + (piece.begin + begin) * call.ldx;
  const T* const a = static_cast<const T*>(pair.a);
  char* const shared = shared_memory();
  const auto fetch = [&](int step) {
    if (step < steps) {
      char* const stage = shared + step % kStages * kStageBytes;
      const int k = (first + step) * kTileDepth;
      copy_tile<kTileRows>(stage, x + k, call.ldx, rows, target.in - k);
      copy_tile<8 * kTiles>(stage + kXBytes, a + k, target.in, columns, target.in - k);
    }
    copy_async_commit();
  };
  float sums[kTiles][4] = {};
#pragma unroll
  for (int step = 0; step < kStages - 1; ++step) fetch(step);
  for (int step = 0; step < steps; ++step) {
    copy_async_wait<kStages - 2>();
    block_barrier();
    fetch(step + kStages - 1);
    char* const stage = shared + step % kStages * kStageBytes;
    if (16 * warp_id() < rows) multiply_stage<T>(stage, stage + kXBytes, columns, sums);
  }
  copy_async_wait<0>();
  const int row = piece.begin + begin + 16 * warp_id();
  write_t<T>(call, piece, row, piece.begin + begin + rows, columns, split, splits, pair.scale,
             sums);
}

// t = the splits' sums in their order, rounded. Grid: elements of t / (4 kShrinkThreads).
template <class T>
__global__ void __launch_bounds__(kShrinkThreads)
    sum_splits_kernel(const float* partial, int splits, std::int64_t elements, T* t) {
  const std::int64_t i = 4 * (std::int64_t{blockIdx.x} * kShrinkThreads + threadIdx.x);
  if (i >= elements) return;
  float4 sum = *reinterpret_cast<const float4*>(partial + i);
#pragma unroll 4
  for (int split = 1; split < splits; ++split) {
    const float4 v = *reinterpret_cast<const float4*>(partial + split * elements + i);
    sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
  }
  *reinterpret_cast<uint2*>(t + i) = {pack<T>(sum.x, sum.y), pack<T>(sum.z, sum.w)};
}

// --- expand ---

// Eight warps share a tile of y, each with 32 rows and 32 columns.
constexpr int kExpandThreads = 256;
constexpr int kWarpRows = 32;
constexpr int kWarpColumns = 32;
constexpr int kTileColumns = kExpandThreads / kWarp / (kTileRows / kWarpRows) * kWarpColumns;
constexpr int kRowGroups = kWarpRows / 16;
constexpr int kTilesOfWarp = kWarpColumns / 8;

__device__ inline int warp_row() { return warp_id() / (kTileColumns / kWarpColumns) * kWarpRows; }
__device__ inline int warp_column() {
  return warp_id() % (kTileColumns / kWarpColumns) * kWarpColumns;
}

// Where row `column` of B goes in shared memory, so that a lane's accumulators of the warp's four
// tiles (columns 2t and 2t + 1 of each, t = lane % 4) are eight neighbouring columns of y.
__device__ inline int place_of(int column) {
  const int within = column % kWarpColumns;
  return column - within + within % 8 / 2 * 8 + within / 8 * 2 + within % 2;
}

// Rows of K = 16 kSteps elements in shared memory, 16 bytes apart: eight rows of a matrix lie in
// different banks.
template <int kSteps>
constexpr int kExpandStride = 32 * kSteps + kChunkBytes;

// Starts to copy `kRows` rows of t, or of B by their places, zeros past `valid` rows and `columns`.
template <int kSteps, int kRows, bool kPlaced, class T>
__device__ inline void copy_rows(char* tile, const T* from, std::int64_t stride, int valid,
                                 int columns) {
  constexpr int kRowChunks = 2 * kSteps;
#pragma unroll
  for (int index = static_cast<int>(threadIdx.x); index < kRows * kRowChunks;
       index += kExpandThreads) {
    const int row = index / kRowChunks;
    const int column = index % kRowChunks * kVector;
    const bool inside = row < valid && column < columns;
    copy_async_16(tile + (kPlaced ? place_of(row) : row) * kExpandStride<kSteps> + 2 * column,
                  inside ? from + row * stride + column : from, inside);
  }
}

// sums += t B^T for the warp's rows and columns. `rows`: valid ones of the tile.
template <class T, int kSteps>
__device__ inline void multiply_tile(const char* t, const char* b, int rows, int columns,
                                     float (&sums)[kRowGroups][kTilesOfWarp][4]) {
  constexpr int kStride = kExpandStride<kSteps>;
  const int lane = lane_id();
  const char* const left_row = t + (warp_row() + lane % 16) * kStride + lane / 16 * kChunkBytes;
  const char* const right_row =
      b + (warp_column() + lane / 16 * 8 + lane % 8) * kStride + lane / 8 % 2 * kChunkBytes;
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    if (16 * k >= columns) break;
    std::uint32_t right[2][4];
    load_matrices(right[0], right_row + 32 * k);
    load_matrices(right[1], right_row + 16 * kStride + 32 * k);
#pragma unroll
    for (int group = 0; group < kRowGroups; ++group) {
      if (warp_row() + 16 * group >= rows) break;
      std::uint32_t left[4];
      load_matrices(left, left_row + 16 * group * kStride + 32 * k);
#pragma unroll
      for (int tile = 0; tile < kTilesOfWarp; ++tile) {
        multiply_add<T>(sums[group][tile], left, right[tile / 2][tile % 2 * 2],
                        right[tile / 2][tile % 2 * 2 + 1]);
      }
    }
  }
}

// The warp's part of the block's 64 x 128 tile of y: each lane's eight columns of row lane / 4 and
// of row lane / 4 + 8 of every group of 16.
template <class Y>
struct OutputTile {
  Y* origin;  // of this lane
  std::int64_t ldy;
  int rows;     // valid ones from the warp's first
  bool inside;  // this lane's columns
  Eight<Y> before[kRowGroups][2];

  __device__ bool has(int group, int half) const {
    return inside && 16 * group + 8 * half + lane_id() / 4 < rows;
  }
  __device__ Y* at(int group, int half) const {
    return origin + (16 * group + 8 * half + lane_id() / 4) * ldy;
  }
  __device__ void load() {
#pragma unroll
    for (int i = 0; i < 2 * kRowGroups; ++i) {
      if (has(i / 2, i % 2)) before[i / 2][i % 2].load(at(i / 2, i % 2));
    }
  }
  __device__ void add(const float (&sums)[kRowGroups][kTilesOfWarp][4]) const {
#pragma unroll
    for (int i = 0; i < 2 * kRowGroups; ++i) {
      const int group = i / 2;
      const int half = i % 2;
      if (!has(group, half)) continue;
      float added[kVector];
#pragma unroll
      for (int j = 0; j < kVector; ++j) added[j] = sums[group][j / 2][2 * half + j % 2];
      before[group][half].add_and_store(added, at(group, half));
    }
  }
};

// Grid: tiles of rows * tiles of columns, pieces (kEinsum: 1, the sum over all of them), targets.
// Shared memory: a tile of t and one of B.
template <class T, class Y, int kSteps>
__global__ void __launch_bounds__(kExpandThreads, 2)
    expand_segments_kernel(const __grid_constant__ LoraCall call, int row_tiles) {
  const LoraTarget& target = call.targets[blockIdx.z];
  const int pieces = call.kind == LoraKind::kEinsum ? call.batch.distinct : 1;
  const Piece first = piece_of(call, static_cast<int>(blockIdx.y));
  const int begin = static_cast<int>(blockIdx.x) % row_tiles * kTileRows;  // within the piece
  const int column = static_cast<int>(blockIdx.x) / row_tiles * kTileColumns;
  if (begin >= first.rows || column >= target.out) return;

  const Intermediate from = intermediate(call);
  const int rows = min(kTileRows, first.rows - begin);
  const int own_row = first.begin + begin + warp_row();
  const int own_column = column + warp_column() + kVector * (lane_id() % 4);
  OutputTile<Y> y{static_cast<Y*>(target.y) + own_row * call.ldy + own_column,
                  call.ldy,
                  rows - warp_row(),
                  own_column < target.out,
                  {}};
  y.load();
  float sums[kRowGroups][kTilesOfWarp][4] = {};
  char* const t_tile = shared_memory();
  char* const b_tile = t_tile + kTileRows * kExpandStride<kSteps>;
  bool any = false;  // adapters that touch this layer
  for (int i = 0; i < pieces; ++i) {
    const Piece piece = piece_of(call, static_cast<int>(blockIdx.y) + i);
    const LoraPair pair = load_pair(target.pairs + piece.slot);
    const int columns = columns_of(call, pair);
    if (columns == 0) continue;
    any = true;
    const T* const t = static_cast<const T*>(from.t) +
                       (blockIdx.z * from.rows + piece.t_row + begin) * call.batch.width;
    const T* const b = static_cast<const T*>(pair.b) + std::int64_t{column} * pair.width;
    copy_rows<kSteps, kTileRows, false>(t_tile, t, call.batch.width, rows, columns);
    copy_rows<kSteps, kTileColumns, true>(b_tile, b, pair.width, target.out - column, columns);
    copy_async_commit();
    copy_async_wait<0>();
    block_barrier();
    multiply_tile<T, kSteps>(t_tile, b_tile, rows, columns, sums);
    block_barrier();
  }
  if (any) y.add(sums);
}

// --- launches ---

Pieces pieces_of(const LoraCall& call) {
  const LoraBatch& batch = call.batch;
  if (call.kind == LoraKind::kEinsum) {
    const int tiles = static_cast<int>(blocks_for(batch.rows, kTileRows));
    return {batch.distinct, tiles, std::int64_t{tiles} * batch.distinct};
  }
  const int tiles =
      static_cast<int>(blocks_for(std::min(batch.max_segment_rows, batch.rows), kTileRows));
  const std::int64_t most = std::int64_t{tiles} * batch.segments;
  return {batch.segments, tiles,
          std::min<std::int64_t>(most, batch.rows / kTileRows + batch.segments)};
}

// As many as give every multiprocessor two blocks, of at least four steps each, and as there is
// room for.
int splits_of(const LoraCall& call, const Pieces& pieces) {
  const std::int64_t wanted = 2 * call.multiprocessors / (pieces.working * call.count);
  const std::int64_t longest = steps_of(call.targets[0].in) / 4;
  const std::int64_t room = kMostPartialRows / (call.count * intermediate(call).rows);
  return static_cast<int>(
      std::clamp<std::int64_t>(std::min({wanted, longest, room}), 1, kMaxSegmentSplits));
}

template <class T, int kTiles>
cudaError_t shrink(const LoraCall& call, const Pieces& pieces, int splits, cudaStream_t stream) {
  constexpr std::size_t kShared = std::size_t{kStages} * (kTileRows + 8 * kTiles) * kTileDepth * 2;
  return launch(shrink_segments_kernel<T, kTiles>,
                dim3(static_cast<unsigned>(pieces.row_tiles * splits),
                     static_cast<unsigned>(pieces.count), static_cast<unsigned>(call.count)),
                kShrinkThreads, kShared, stream, call, splits);
}

template <class T, class Y, int kSteps>
cudaError_t expand(const LoraCall& call, const Pieces& pieces, cudaStream_t stream) {
  int out = 0;
  for (int i = 0; i < call.count; ++i) out = std::max(out, call.targets[i].out);
  const unsigned count = call.kind == LoraKind::kEinsum ? 1 : static_cast<unsigned>(pieces.count);
  return launch(expand_segments_kernel<T, Y, kSteps>,
                dim3(static_cast<unsigned>(pieces.row_tiles) * blocks_for(out, kTileColumns), count,
                     static_cast<unsigned>(call.count)),
                kExpandThreads, (kTileRows + kTileColumns) * kExpandStride<kSteps>, stream, call,
                pieces.row_tiles);
}

// kSteps: of 16 columns of t.
template <class T, class Y, int kSteps>
cudaError_t run(const LoraCall& call, cudaStream_t stream) {
  const Pieces pieces = pieces_of(call);
  const int splits = splits_of(call, pieces);
  cudaError_t error = call.shrink == SegmentShrink::kWgmma
                          ? wgmma_shrink(call, pieces, splits, stream)
                          : shrink<T, 2 * kSteps>(call, pieces, splits, stream);
  if (error == cudaSuccess && splits > 1) {
    const Intermediate to = intermediate(call);
    const std::int64_t elements = call.count * to.rows * call.batch.width;
    error = launch(sum_splits_kernel<T>, blocks_for(elements, 4 * kShrinkThreads), kShrinkThreads,
                   0, stream, to.partial, splits, elements, static_cast<T*>(to.t));
  }
  if (error != cudaSuccess) return error;
  return expand<T, Y, kSteps>(call, pieces, stream);
}

template <class T, class Y>
cudaError_t run(const LoraCall& call, cudaStream_t stream) {
  if (call.batch.width <= 16) return run<T, Y, 1>(call, stream);
  if (call.batch.width <= 32) return run<T, Y, 2>(call, stream);
  if (call.batch.width <= 64) return run<T, Y, 4>(call, stream);
  return run<T, Y, 8>(call, stream);
}

}  // namespace

cudaError_t lora_by_segments(const LoraCall& call, cudaStream_t stream) {
  return with_half_type(call.batch.type, [&](auto element) {
    using T = decltype(element);
    return call.batch.y_type == DType::kF32 ? run<T, float>(call, stream) : run<T, T>(call, stream);
  });
}

}  // namespace servelab::kernels::cuda
