// Attention of many queries per sequence on tensor cores (FlashAttention-2): a block has a tile of
// queries of one head and walks over tiles of keys, with an online softmax in registers. Keys and
// values come through cp.async, one tile ahead. Tiles lie in shared memory in rows of kWidth
// elements, whose 16-byte pieces are swapped by row so that ldmatrix meets no bank conflicts.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/paged.cuh"

namespace servelab::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kVector = 8;   // elements in 16 bytes
constexpr int kRows = 16;    // of a matrix fragment
constexpr int kColumns = 8;  // of an accumulator fragment
constexpr float kInfinity = __builtin_huge_valf();

template <class T>
struct Prefill {
  PagedKv<T> kv;
  const T* q;
  std::int64_t ldq;
  T* out;
  std::int64_t ldo;
  int heads;
  float scale;
};

// A tile in shared memory: rows of `width` elements.
template <class T, int width>
struct Tile {
  static constexpr int kPieces = width / kVector;
  T* memory;

  __device__ T* at(int row, int piece) const {
    return memory + row * width + (piece ^ (row % 8)) * kVector;
  }
};

// The tiles of a block. Keys and values have two each: one in use, one on its way.
template <class T, int width, int fragments, int keys_each>
struct Tiles {
  static constexpr int kQueries = kWarps * kRows * fragments;
  static constexpr int kTile = keys_each * width;
  static constexpr int kBytes = (kQueries * width + 4 * kTile) * static_cast<int>(sizeof(T));

  __device__ Tile<T, width> queries() const { return {reinterpret_cast<T*>(shared_memory())}; }
  __device__ Tile<T, width> keys(int tile) const {
    return {queries().memory + kQueries * width + tile % 2 * kTile};
  }
  __device__ Tile<T, width> values(int tile) const { return {keys(tile).memory + 2 * kTile}; }
};

// Starts copying rows [0, rows) of a tile; `row_at(row)` is where a row begins in global memory, or
// null for a row of zeros. Columns from head_dim on are zeros too. `any` is a valid address.
template <class T, int width, class RowAt>
__device__ void copy_rows(Tile<T, width> tile, int rows, int head_dim, const T* any,
                          const RowAt& row_at) {
  constexpr int kPieces = Tile<T, width>::kPieces;
  constexpr int kRowsAtOnce = kThreads / kPieces;
  const int piece = static_cast<int>(threadIdx.x) % kPieces;
  const bool inside = piece * kVector < head_dim;
#pragma unroll 4
  for (int row = static_cast<int>(threadIdx.x) / kPieces; row < rows; row += kRowsAtOnce) {
    const T* const from = row_at(row);
    const bool valid = inside && from != nullptr;
    copy_async_16(tile.at(row, piece), valid ? from + piece * kVector : any, valid);
  }
}

template <int keys, class T, int width>
__device__ void copy_tile(const PagedKv<T>& kv, const T* head, const std::int32_t* table, int tile,
                          int length, Tile<T, width> to) {
  copy_rows(to, keys, kv.head_dim, kv.keys, [&](int row) -> const T* {
    const int position = tile * keys + row;
    if (position >= length) return nullptr;
    return head + kv.offset(table[kv.entry(position)], position);
  });
}

// What a warp has of its rows: lane l has rows l / 4 and l / 4 + 8 of each fragment.
template <int width, int fragments>
struct Running {
  float maximum[fragments][2];
  float sum[fragments][2];  // of this lane's columns
  float output[fragments][width / kColumns][4];
};

template <int width, int fragments>
__device__ void clear(Running<width, fragments>& state) {
#pragma unroll
  for (int f = 0; f < fragments; ++f) {
    state.maximum[f][0] = state.maximum[f][1] = -kInfinity;
    state.sum[f][0] = state.sum[f][1] = 0;
#pragma unroll
    for (int n = 0; n < width / kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) state.output[f][n][i] = 0;
    }
  }
}

// Of one fragment's rows: `columns` accumulators of eight keys each.
template <int columns>
using Scores = float[columns][4];

// scores = queries keys^T of the warp's rows, which begin at `row`.
template <class T, int width, int fragments, int columns>
__device__ void multiply_keys(Tile<T, width> query_tile, Tile<T, width> key_tile, int row,
                              Scores<columns> (&scores)[fragments]) {
  const int lane = lane_id();
#pragma unroll
  for (int f = 0; f < fragments; ++f) {
#pragma unroll
    for (int n = 0; n < columns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[f][n][i] = 0;
    }
  }
#pragma unroll 4  // all of them would need more registers for addresses than there are
  for (int k = 0; k < width / 16; ++k) {
    std::uint32_t a[fragments][4];
#pragma unroll
    for (int f = 0; f < fragments; ++f) {
      load_matrices(a[f], query_tile.at(row + f * kRows + lane % 16, 2 * k + lane / 16));
    }
#pragma unroll
    for (int n = 0; n < columns / 2; ++n) {
      std::uint32_t b[4];
      load_matrices(b, key_tile.at(n * 16 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
#pragma unroll
      for (int f = 0; f < fragments; ++f) {
        multiply_add<T>(scores[f][2 * n], a[f], b[0], b[1]);
        multiply_add<T>(scores[f][2 * n + 1], a[f], b[2], b[3]);
      }
    }
  }
}

// Scores of keys after their query become -inf. `first`: the position of the warp's first row
// beside that of the tile's first key.
template <int fragments, int columns>
__device__ void mask(int first, Scores<columns> (&scores)[fragments]) {
  const int lane = lane_id();
#pragma unroll
  for (int f = 0; f < fragments; ++f) {
#pragma unroll
    for (int n = 0; n < columns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int query = first + f * kRows + lane / 4 + i / 2 * 8;
        const int key = n * kColumns + lane % 4 * 2 + i % 2;
        if (key > query) scores[f][n][i] = -kInfinity;
      }
    }
  }
}

// Turns scores into weights against the new maxima, and rescales what was summed so far. The first
// tile has a key for every row, so maxima are finite.
template <int width, int fragments, int columns>
__device__ void soften(float scale, Scores<columns> (&scores)[fragments],
                       Running<width, fragments>& state) {
#pragma unroll
  for (int f = 0; f < fragments; ++f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float maximum = state.maximum[f][half];
#pragma unroll
      for (int n = 0; n < columns; ++n) {
        maximum = fmaxf(maximum, fmaxf(scores[f][n][2 * half], scores[f][n][2 * half + 1]));
      }
      maximum = fmaxf(maximum, shuffle_xor(maximum, 1));
      maximum = fmaxf(maximum, shuffle_xor(maximum, 2));
      const float rescale = exp2_fast((state.maximum[f][half] - maximum) * scale);
      const float base = maximum * scale;
      state.maximum[f][half] = maximum;
      float sum = state.sum[f][half] * rescale;
#pragma unroll
      for (int n = 0; n < columns; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[f][n][i] = exp2_fast(scores[f][n][i] * scale - base);
          sum += scores[f][n][i];
        }
      }
      state.sum[f][half] = sum;
#pragma unroll
      for (int n = 0; n < width / kColumns; ++n) {
        state.output[f][n][2 * half] *= rescale;
        state.output[f][n][2 * half + 1] *= rescale;
      }
    }
  }
}

// output += weights values. An accumulator's layout is that of an operand, two fragments to one.
template <class T, int width, int fragments, int columns>
__device__ void multiply_values(Tile<T, width> values, const Scores<columns> (&weights)[fragments],
                                Running<width, fragments>& state) {
  const int lane = lane_id();
#pragma unroll
  for (int k = 0; k < columns / 2; ++k) {
    std::uint32_t a[fragments][4];
#pragma unroll
    for (int f = 0; f < fragments; ++f) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* const pair = &weights[f][2 * k + i / 2][i % 2 * 2];
        a[f][i] = pack<T>(pair[0], pair[1]);
      }
    }
#pragma unroll
    for (int n = 0; n < width / 16; ++n) {
      std::uint32_t b[4];
      load_matrices_transposed(b, values.at(k * 16 + lane % 16, 2 * n + lane / 16));
#pragma unroll
      for (int f = 0; f < fragments; ++f) {
        multiply_add<T>(state.output[f][2 * n], a[f], b[0], b[1]);
        multiply_add<T>(state.output[f][2 * n + 1], a[f], b[2], b[3]);
      }
    }
  }
}

// Divides by the sums and puts the warp's rows where its queries were.
template <class T, int width, int fragments>
__device__ void put_output(const Running<width, fragments>& state, Tile<T, width> rows, int row) {
  const int lane = lane_id();
  warp_barrier();
#pragma unroll
  for (int f = 0; f < fragments; ++f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = state.sum[f][half];
      sum += shuffle_xor(sum, 1);
      sum += shuffle_xor(sum, 2);
      const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
#pragma unroll
      for (int n = 0; n < width / kColumns; ++n) {
        T* const to = rows.at(row + f * kRows + lane / 4 + 8 * half, n) + lane % 4 * 2;
        *reinterpret_cast<std::uint32_t*>(to) = pack<T>(state.output[f][n][2 * half] * inverse,
                                                        state.output[f][n][2 * half + 1] * inverse);
      }
    }
  }
  warp_barrier();
}

// The warp's rows of a tile, as far as they are below `count`, to global memory.
template <int fragments, class T, int width>
__device__ void store_rows(Tile<T, width> tile, int row, int count, int head_dim, T* out,
                           std::int64_t ldo) {
  constexpr int kPieces = Tile<T, width>::kPieces;
  for (int i = lane_id(); i < kRows * fragments * kPieces; i += kWarp) {
    const int at = row + i / kPieces;
    const int piece = i % kPieces;
    if (at >= count || piece * kVector >= head_dim) continue;
    store_16(out + at * ldo + piece * kVector, load_16(tile.at(at, piece)));
  }
}

// blockIdx: tile of queries, the last ones (with the most keys) first; head; sequence.
template <class T, int width, int fragments, int keys>
__global__ void __launch_bounds__(kThreads) prefill_kernel(Prefill<T> o) {
  constexpr Tiles<T, width, fragments, keys> kTiles;
  constexpr int kQueries = kTiles.kQueries;
  const std::int64_t row_begin = o.kv.query_begin[blockIdx.z];
  const int queries = o.kv.query_begin[blockIdx.z + 1] - static_cast<int>(row_begin);
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kQueries;  // of the sequence
  if (first >= queries) return;
  const int head_dim = o.kv.head_dim;
  const int kv_head = static_cast<int>(blockIdx.y) / (o.heads / o.kv.kv_heads);
  const std::int64_t column = std::int64_t{blockIdx.y} * head_dim;
  const int context = o.kv.contexts[blockIdx.z];
  const int count = min(kQueries, queries - first);
  const int length = context < 0 ? 0 : context + first + count;  // keys that this tile sees
  const int tiles = (length + keys - 1) / keys;
  const std::int32_t* const table = o.kv.table(static_cast<int>(blockIdx.z));
  const T* const head_keys = o.kv.keys + o.kv.head_offset(kv_head);
  const T* const head_values = o.kv.values + o.kv.head_offset(kv_head);

  copy_rows(kTiles.queries(), kQueries, head_dim, o.q, [&](int row) -> const T* {
    return row < count ? o.q + (row_begin + first + row) * o.ldq + column : nullptr;
  });
  copy_tile<keys>(o.kv, head_keys, table, 0, length, kTiles.keys(0));
  copy_async_commit();
  copy_tile<keys>(o.kv, head_values, table, 0, length, kTiles.values(0));
  copy_async_commit();

  Running<width, fragments> state;
  clear(state);
  const int row = warp_id() * kRows * fragments;
  for (int tile = 0; tile < tiles; ++tile) {
    copy_async_wait<1>();  // this tile's keys; its values may still come
    block_barrier();       // everybody's; and nobody uses the other two tiles any more
    const bool more = tile + 1 < tiles;
    if (more) copy_tile<keys>(o.kv, head_keys, table, tile + 1, length, kTiles.keys(tile + 1));
    copy_async_commit();
    Scores<keys / kColumns> scores[fragments];
    multiply_keys(kTiles.queries(), kTiles.keys(tile), row, scores);
    const int position = context + first + row - tile * keys;
    if (position < keys - 1) mask(position, scores);
    soften(o.scale, scores, state);
    copy_async_wait<1>();  // this tile's values
    block_barrier();
    if (more) copy_tile<keys>(o.kv, head_values, table, tile + 1, length, kTiles.values(tile + 1));
    copy_async_commit();
    multiply_values(kTiles.values(tile), scores, state);
  }
  copy_async_wait<0>();

  block_barrier();  // without a key there was none yet: queries may still be on their way

  put_output(state, kTiles.queries(), row);
  T* const out = o.out + (row_begin + first) * o.ldo + column;
  store_rows<fragments>(kTiles.queries(), row, count, head_dim, out, o.ldo);
}

template <class T, int width, int fragments, int keys>
cudaError_t start(const Prefill<T>& prefill, const AttentionBatch& batch, cudaStream_t stream) {
  using Tiles = Tiles<T, width, fragments, keys>;
  const dim3 grid(blocks_for(batch.max_queries, Tiles::kQueries),
                  static_cast<unsigned>(prefill.heads), static_cast<unsigned>(batch.sequences));
  return launch(prefill_kernel<T, width, fragments, keys>, grid, kThreads, Tiles::kBytes, stream,
                prefill);
}

}  // namespace

cudaError_t prefill_attention(const KvCache& cache, const AttentionBatch& batch, int heads,
                              const void* q, std::int64_t ldq, void* out, std::int64_t ldo,
                              cudaStream_t stream) {
  if (!attention_fits(cache, batch, heads, ldq, ldo)) return cudaErrorNotSupported;
  return with_half_type(cache.type, [&](auto element) {
    using T = decltype(element);
    const Prefill<T> prefill{
        paged_kv<T>(cache, batch),  static_cast<const T*>(q), ldq, static_cast<T*>(out), ldo, heads,
        score_scale(cache.head_dim)};
    if (cache.head_dim <= 64) return start<T, 64, 2, 64>(prefill, batch, stream);
    if (cache.head_dim <= 128) return start<T, 128, 2, 32>(prefill, batch, stream);
    return start<T, 256, 1, 32>(prefill, batch, stream);
  });
}

}  // namespace servelab::kernels::cuda
