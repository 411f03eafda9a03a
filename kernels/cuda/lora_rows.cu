// BGMV and MBGMV: one adapter per row. Every byte of A and B is read once per row and used once, so
// the kernels are made of 16-byte loads, eight of them in flight in each thread: 4 KiB per warp.
#include <algorithm>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/lora_device.cuh"

namespace servelab::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBlocksPerMultiprocessor = 6;  // 80 registers a thread, 96 KiB of loads in flight
constexpr int kLoads = 8;                    // in flight in each thread
constexpr int kStep = kWarp * kVector;       // elements of a row that a warp reads at once

// The partial sums of a row: [columns], one such row for each split, `split_stride` apart.
struct Partial {
  float* t;
  std::int64_t split_stride;
};
__device__ inline Partial partial(const LoraCall& call, int target, int row) {
  const std::int64_t rows = call.batch.rows;
  return {static_cast<float*>(call.workspace) + (target * rows + row) * call.batch.width,
          call.count * rows * call.batch.width};
}

template <class T>
__device__ inline float dot(uint4 packed, const float (&x)[kVector], float sum) {
  float values[kVector];
  unpack_8<T>(packed, values);
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum += values[i] * x[i];
  return sum;
}

// One warp's part of eight columns of t: x[begin, end) times eight rows of A, summed over the warp.
template <class T>
__device__ inline void shrink_columns(const T* a, int in, const T* x, int begin, int end,
                                      float (&sums)[kLoads]) {
#pragma unroll
  for (int i = 0; i < kLoads; ++i) sums[i] = 0;
  for (int k = begin + kVector * lane_id(); k < end; k += kStep) {
    uint4 packed[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) packed[i] = load_16_once(a + std::int64_t{i} * in + k);
    float values[kVector];
    unpack_8<T>(load_16(x + k), values);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) sums[i] = dot<T>(packed[i], values, sums[i]);
  }
#pragma unroll
  for (int i = 0; i < kLoads; ++i) sums[i] = warp_sum(sums[i]);
}

// Grid: rows, kRowSplits * parts, targets. A block sums its split of `in`, shared among its warps,
// for every `parts`-th group of eight columns. Shared memory: f32 [groups][kWarps][8].
template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    shrink_rows_kernel(const __grid_constant__ LoraCall call, int parts) {
  const int row = static_cast<int>(blockIdx.x);
  const int split = static_cast<int>(blockIdx.y) % kRowSplits;
  const int part = static_cast<int>(blockIdx.y) / kRowSplits;
  const LoraTarget& target = call.targets[blockIdx.z];
  const int slot = call.batch.slots[row];
  if (slot < 0) return;
  const LoraPair pair = load_pair(target.pairs + slot);
  const int groups = columns_of(call, pair) / kLoads;
  if (part >= groups) return;

  const T* const a = static_cast<const T*>(pair.a);
  const T* const x = static_cast<const T*>(call.x) + row * call.ldx;
  const int steps = (target.in + kStep - 1) / kStep;
  const int share = split * kWarps + warp_id();
  const int begin = steps * share / (kRowSplits * kWarps) * kStep;
  const int end = min(target.in, steps * (share + 1) / (kRowSplits * kWarps) * kStep);
  float* const shared = reinterpret_cast<float*>(shared_memory());
  int count = 0;
  for (int group = part; group < groups; group += parts, ++count) {
    float sums[kLoads];
    shrink_columns(a + std::int64_t{group} * kLoads * target.in, target.in, x, begin, end, sums);
    if (lane_id() == 0) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) shared[(count * kWarps + warp_id()) * kLoads + i] = sums[i];
    }
  }
  block_barrier();
  const Partial to = partial(call, static_cast<int>(blockIdx.z), row);
  for (int i = static_cast<int>(threadIdx.x); i < count * kLoads; i += kThreads) {
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      sum += shared[(i / kLoads * kWarps + warp) * kLoads + i % kLoads];
    }
    const int column = (part + i / kLoads * parts) * kLoads + i % kLoads;
    to.t[split * to.split_stride + column] = sum;
  }
}

// What one thread loads of rows [begin, rows) of B, where kLanes lanes share a row: lane i of them
// its i-th 16 bytes, `vectors` in all. The warp reads kRows rows at once, the block's warps side by
// side. Lanes that have nothing to read repeat the last vector or row, so that no load is a branch.
template <int kLanes>
struct RowsOfB {
  static constexpr int kRows = kWarp / kLanes;
  static constexpr int kPass = kLoads * kWarps * kRows;

  __device__ static int row(int begin, int load) {
    return begin + (load * kWarps + warp_id()) * kRows + lane_id() / kLanes;
  }
  __device__ static int vector() { return lane_id() % kLanes; }

  template <class T>
  __device__ static void load(const T* b, int width, int vectors, int begin, int rows,
                              uint4 (&packed)[kLoads]) {
    const T* const from = b + min(vector(), vectors - 1) * kVector;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      packed[i] = load_16_once(from + std::int64_t{min(row(begin, i), rows - 1)} * width);
    }
  }
};

// sums[o] = t B[o, :] for o < rows. The first loads of B start before `gather_t`, which fills t and
// ends with a barrier.
template <class T, int kLanes, class GatherT>
__device__ inline void expand_tile(const T* b, int width, int vectors, int rows,
                                   const GatherT& gather_t, const float* t, float* sums) {
  using Rows = RowsOfB<kLanes>;
  uint4 packed[kLoads];
  Rows::load(b, width, vectors, 0, rows, packed);
  gather_t();
  const int vector = Rows::vector();
  float values[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) values[i] = vector < vectors ? t[vector * kVector + i] : 0.0f;
  for (int begin = 0;;) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      float sum = dot<T>(packed[i], values, 0.0f);
#pragma unroll
      for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) sum += shuffle_xor(sum, lanes);
      const int row = Rows::row(begin, i);
      if (vector == 0 && row < rows) sums[row] = sum;
    }
    begin += Rows::kPass;
    if (begin >= rows) break;
    Rows::load(b, width, vectors, begin, rows, packed);
  }
}

// The row's t in shared memory: the splits' sums, in their order.
__device__ inline void gather_t(const Partial& from, int columns, float scale, float* t) {
  const int column = static_cast<int>(threadIdx.x);
  if (column >= columns) return;
  float parts[kRowSplits];
#pragma unroll
  for (int i = 0; i < kRowSplits; ++i) parts[i] = from.t[i * from.split_stride + column];
  float sum = parts[0];
#pragma unroll
  for (int i = 1; i < kRowSplits; ++i) sum += parts[i];
  t[column] = scale * sum;
}

// Grid: rows, tiles of `tile` columns of y (at most kMaxTile), targets. Shared memory: f32 t
// [kMaxLoraWidth], sums [tile].
constexpr int kMaxTile = kThreads * kVector;
static_assert(kMaxLoraWidth <= kThreads);

template <class T, class Y>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    expand_rows_kernel(const __grid_constant__ LoraCall call, int tile) {
  const int row = static_cast<int>(blockIdx.x);
  const int begin = static_cast<int>(blockIdx.y) * tile;
  const LoraTarget& target = call.targets[blockIdx.z];
  const int slot = call.batch.slots[row];
  if (slot < 0 || begin >= target.out) return;
  const LoraPair pair = load_pair(target.pairs + slot);
  const int columns = columns_of(call, pair);
  if (columns == 0) return;

  const int rows = min(tile, target.out - begin);
  const int mine = kVector * static_cast<int>(threadIdx.x);  // of the tile's elements of y
  Y* const y = static_cast<Y*>(target.y) + row * call.ldy + begin + mine;
  Eight<Y> before;
  if (mine < rows) before.load(y);
  float* const t = reinterpret_cast<float*>(shared_memory());
  float* const sums = t + kMaxLoraWidth;
  const auto gather = [&] {
    gather_t(partial(call, static_cast<int>(blockIdx.z), row), columns, pair.scale, t);
    block_barrier();
  };
  const T* const b = static_cast<const T*>(pair.b) + std::int64_t{begin} * pair.width;
  const int vectors = columns / kVector;
  if (vectors == 1) {
    expand_tile<T, 1>(b, pair.width, vectors, rows, gather, t, sums);
  } else if (vectors == 2) {
    expand_tile<T, 2>(b, pair.width, vectors, rows, gather, t, sums);
  } else if (vectors <= 4) {
    expand_tile<T, 4>(b, pair.width, vectors, rows, gather, t, sums);
  } else if (vectors <= 8) {
    expand_tile<T, 8>(b, pair.width, vectors, rows, gather, t, sums);
  } else {
    expand_tile<T, 16>(b, pair.width, vectors, rows, gather, t, sums);
  }
  block_barrier();
  if (mine >= rows) return;
  float added[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) added[i] = sums[mine + i];
  before.add_and_store(added, y);
}

int widest(const LoraCall& call) {
  int out = 0;
  for (int i = 0; i < call.count; ++i) out = std::max(out, call.targets[i].out);
  return out;
}

// Columns of y for a block: as many as fill the device, up to 64 KiB of B.
int tile_of(const LoraCall& call, int out) {
  constexpr int kMinTile = 64;
  constexpr int kMaxElements = 32 * 1024;
  const std::int64_t wanted = std::int64_t{kBlocksPerMultiprocessor} * call.multiprocessors;
  int tile = kMaxTile;
  while (tile > kMinTile &&
         (tile * call.batch.width > kMaxElements ||
          std::int64_t{call.batch.rows} * call.count * blocks_for(out, tile) < wanted)) {
    tile /= 2;
  }
  return tile;
}

template <class T, class Y>
cudaError_t start(const LoraCall& call, cudaStream_t stream) {
  const auto rows = static_cast<unsigned>(call.batch.rows);
  const auto targets = static_cast<unsigned>(call.count);
  const int groups = call.batch.width / kLoads;
  const std::int64_t blocks = std::int64_t{call.batch.rows} * call.count * kRowSplits;
  const std::int64_t wanted = std::int64_t{kBlocksPerMultiprocessor} * call.multiprocessors;
  const int parts = static_cast<int>(std::clamp<std::int64_t>(wanted / blocks, 1, groups));
  const std::size_t shared = blocks_for(groups, parts) * kWarps * kLoads * sizeof(float);
  const cudaError_t error =
      launch(shrink_rows_kernel<T>, dim3(rows, static_cast<unsigned>(kRowSplits * parts), targets),
             kThreads, shared, stream, call, parts);
  if (error != cudaSuccess) return error;
  const int out = widest(call);
  const int tile = tile_of(call, out);
  return launch(expand_rows_kernel<T, Y>, dim3(rows, blocks_for(out, tile), targets), kThreads,
                static_cast<std::size_t>(kMaxLoraWidth + tile) * sizeof(float), stream, call, tile);
}

}  // namespace

cudaError_t lora_by_rows(const LoraCall& call, cudaStream_t stream) {
  return with_half_type(call.batch.type, [&](auto element) {
    using T = decltype(element);
    return call.batch.y_type == DType::kF32 ? start<T, float>(call, stream)
                                            : start<T, T>(call, stream);
  });
}

}  // namespace servelab::kernels::cuda
