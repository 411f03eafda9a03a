// Attention of one query per sequence: bound by reading keys and values. A block has one KV head of
// one sequence (or of a part of its context) and all query heads that share it, so that each key
// and value is loaded once. kLanes lanes of a warp share a key, each with eight of its elements;
// every such group of lanes keeps its own running maximum, sum and output, merged at the end.
#include <algorithm>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/paged.cuh"

namespace servelab::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kVector = 8;
constexpr int kSplitUnit = 64;  // keys; parts of a context are multiples of it
constexpr float kInfinity = __builtin_huge_valf();

template <class T>
struct Decode {
  PagedKv<T> kv;
  const T* q;
  std::int64_t ldq;
  T* out;
  std::int64_t ldo;
  int heads;
  float scale;
  float* partial;  // [sequences][heads][splits][head_dim + 2]: output, maximum, sum
};

// The keys [begin, end) of this block.
struct Range {
  int begin;
  int end;
};

__device__ Range range_of_block(int keys) {
  const int splits = static_cast<int>(gridDim.x);
  const int each = ((keys + splits - 1) / splits + kSplitUnit - 1) / kSplitUnit * kSplitUnit;
  const int begin = min(keys, static_cast<int>(blockIdx.x) * each);
  return {begin, min(keys, begin + each)};
}

// What one group of lanes has seen of `heads` query heads: eight elements of each output.
template <int heads>
struct Running {
  float maximum[heads];
  float sum[heads];
  float output[heads][kVector];
};

// Adds `keys` keys with their scores (in log2; -inf: not there) and values.
template <class T, int heads, int keys>
__device__ void accumulate(const float (&score)[keys][heads], const uint4 (&packed)[keys],
                           Running<heads>& state) {
  float weight[keys][heads];
#pragma unroll
  for (int h = 0; h < heads; ++h) {
    float maximum = state.maximum[h];
#pragma unroll
    for (int i = 0; i < keys; ++i) maximum = fmaxf(maximum, score[i][h]);
    const float base = maximum == -kInfinity ? 0.0f : maximum;  // nothing seen yet
    const float rescale = exp2_fast(state.maximum[h] - base);
    state.maximum[h] = maximum;
    state.sum[h] *= rescale;
#pragma unroll
    for (int j = 0; j < kVector; ++j) state.output[h][j] *= rescale;
#pragma unroll
    for (int i = 0; i < keys; ++i) {
      weight[i][h] = exp2_fast(score[i][h] - base);
      state.sum[h] += weight[i][h];
    }
  }
#pragma unroll
  for (int i = 0; i < keys; ++i) {
    float value[kVector];
    unpack_8<T>(packed[i], value);
#pragma unroll
    for (int h = 0; h < heads; ++h) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) state.output[h][j] += weight[i][h] * value[j];
    }
  }
}

// The dot products of a key with the query heads, in every lane of the group.
template <class T, int lanes, int heads>
__device__ void scores_of(uint4 packed, const float (&q)[heads][kVector], float (&score)[heads]) {
  float key[kVector];
  unpack_8<T>(packed, key);
#pragma unroll
  for (int h = 0; h < heads; ++h) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kVector; ++j) sum += q[h][j] * key[j];
#pragma unroll
    for (int distance = lanes / 2; distance > 0; distance /= 2) sum += shuffle_xor(sum, distance);
    score[h] = sum;
  }
}

// Every warp takes every fourth stretch of the range, `keys` keys per group of lanes at a time; all
// of a stretch's loads are under way before the first is used, and the next stretch's block numbers
// are known by then.
template <class T, int lanes, int heads, int keys>
__device__ void scan(const PagedKv<T>& kv, int kv_head, Range range, bool active, int element,
                     const float (&q)[heads][kVector], Running<heads>& state) {
  constexpr int kGroups = kWarp / lanes;
  constexpr int kStretch = kGroups * keys;
  const int group = lane_id() / lanes;
  const std::int32_t* const table = kv.table(static_cast<int>(blockIdx.z));
  const T* const all_keys = kv.keys + kv.head_offset(kv_head) + element;
  const T* const all_values = kv.values + kv.head_offset(kv_head) + element;
  int block[keys];
  const auto look_up = [&](int begin) {
#pragma unroll
    for (int i = 0; i < keys; ++i) {
      const int position = begin + i * kGroups + group;
      block[i] = position < range.end ? table[kv.entry(position)] : 0;
    }
  };
  int begin = range.begin + warp_id() * kStretch;
  look_up(begin);
  for (; begin < range.end; begin += kWarps * kStretch) {
    uint4 key[keys];
    uint4 value[keys];
#pragma unroll
    for (int i = 0; i < keys; ++i) {
      const int position = begin + i * kGroups + group;
      const bool there = active && position < range.end;
      const std::int64_t offset = kv.offset(block[i], position);
      key[i] = value[i] = {0, 0, 0, 0};
      if (there) key[i] = load_16_once(all_keys + offset);
      if (there) value[i] = load_16_once(all_values + offset);
    }
    look_up(begin + kWarps * kStretch);
    float score[keys][heads];
#pragma unroll
    for (int i = 0; i < keys; ++i) {
      scores_of<T, lanes, heads>(key[i], q, score[i]);
      const bool there = begin + i * kGroups + group < range.end;
#pragma unroll
      for (int h = 0; h < heads; ++h) score[i][h] = there ? score[i][h] : -kInfinity;
    }
    accumulate<T>(score, value, state);
  }
}

// Every group's maximum, sum and output, in shared memory: [part][head][lanes * 8 + 2].
template <int lanes, int heads>
struct Parts {
  static constexpr int kCount = kWarps * kWarp / lanes;
  static constexpr int kWidth = lanes * kVector + 2;
  static constexpr int kBytes = kCount * heads * kWidth * static_cast<int>(sizeof(float));
  float* memory;

  __device__ float* of(int part, int head) const { return memory + (part * heads + head) * kWidth; }
  __device__ void put(const Running<heads>& state) const {
    const int part = static_cast<int>(threadIdx.x) / lanes;
    const int lane = lane_id() % lanes;
#pragma unroll
    for (int h = 0; h < heads; ++h) {
      float* const to = of(part, h);
      if (lane == 0) {
        to[0] = state.maximum[h];
        to[1] = state.sum[h];
      }
#pragma unroll
      for (int j = 0; j < kVector; ++j) to[2 + lane * kVector + j] = state.output[h][j];
    }
  }
};

// One element of the merged output of `parts` parts, `stride` floats apart, whose maxima, sums and
// elements lie at these pointers.
struct Merged {
  float maximum;
  float sum;
  float output;
};
__device__ Merged merge(int parts, std::int64_t stride, const float* maxima, const float* sums,
                        const float* outputs) {
  Merged all = {-kInfinity, 0, 0};
  for (int i = 0; i < parts; ++i) all.maximum = fmaxf(all.maximum, maxima[i * stride]);
  if (all.maximum == -kInfinity) return all;
  for (int i = 0; i < parts; ++i) {
    const float weight = exp2_fast(maxima[i * stride] - all.maximum);
    all.sum += weight * sums[i * stride];
    all.output += weight * outputs[i * stride];
  }
  return all;
}

// Blocks of a multiprocessor that registers allow, by query heads.
[[maybe_unused]] constexpr int blocks_by_registers(int heads) {
  return heads == 1 ? 6 : heads == 2 ? 4 : heads == 4 ? 3 : 2;
}

// blockIdx: part of the context; KV head and share of its query heads; sequence.
template <class T, int lanes, int heads, int keys>
__global__ void __launch_bounds__(kThreads, blocks_by_registers(heads)) decode_kernel(Decode<T> o) {
  const int head_dim = o.kv.head_dim;
  const int group = o.heads / o.kv.kv_heads;
  const int shares = (group + heads - 1) / heads;
  const int kv_head = static_cast<int>(blockIdx.y) / shares;
  const int first = static_cast<int>(blockIdx.y) % shares * heads;  // of the group
  const int first_head = kv_head * group + first;
  const int count = min(heads, group - first);
  const auto sequence = static_cast<std::int64_t>(blockIdx.z);
  const int element = lane_id() % lanes * kVector;
  const bool active = element < head_dim;

  float q[heads][kVector] = {};
  Running<heads> state = {};
#pragma unroll
  for (int h = 0; h < heads; ++h) {
    state.maximum[h] = -kInfinity;
    if (!active || h >= count) continue;
    unpack_8<T>(load_16(o.q + sequence * o.ldq + (first_head + h) * head_dim + element), q[h]);
#pragma unroll
    for (int j = 0; j < kVector; ++j) q[h][j] *= o.scale;
  }
  const int context = o.kv.contexts[sequence];
  const Range range = range_of_block(context < 0 ? 0 : context + 1);
  scan<T, lanes, heads, keys>(o.kv, kv_head, range, active, element, q, state);

  const Parts<lanes, heads> parts{reinterpret_cast<float*>(shared_memory())};
  parts.put(state);
  block_barrier();
  for (int i = static_cast<int>(threadIdx.x); i < count * head_dim; i += kThreads) {
    const int h = i / head_dim;
    const int at = i % head_dim;
    const float* const from = parts.of(0, h);
    constexpr int kStride = heads * Parts<lanes, heads>::kWidth;
    const Merged all = merge(Parts<lanes, heads>::kCount, kStride, from, from + 1, from + 2 + at);
    const std::int64_t head = first_head + h;
    if (o.partial == nullptr) {
      o.out[sequence * o.ldo + head * head_dim + at] =
          from_f32<T>(all.sum > 0 ? all.output / all.sum : 0.0f);
      continue;
    }
    float* const to =
        o.partial + ((sequence * o.heads + head) * gridDim.x + blockIdx.x) * (head_dim + 2);
    to[at] = all.output;
    if (at == 0) {
      to[head_dim] = all.maximum;
      to[head_dim + 1] = all.sum;
    }
  }
}

// blockIdx: head, sequence.
template <class T>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const float* partial, int splits, int head_dim, T* out, std::int64_t ldo) {
  const std::int64_t head = blockIdx.x;
  const std::int64_t sequence = blockIdx.y;
  const std::int64_t stride = head_dim + 2;
  const float* const from = partial + (sequence * gridDim.x + head) * splits * stride;
  for (int at = static_cast<int>(threadIdx.x); at < head_dim; at += kThreads) {
    const Merged all = merge(splits, stride, from + head_dim, from + head_dim + 1, from + at);
    out[sequence * ldo + head * head_dim + at] =
        from_f32<T>(all.sum > 0 ? all.output / all.sum : 0.0f);
  }
}

template <class T, int lanes, int heads>
cudaError_t start(const Decode<T>& decode, int sequences, int splits, cudaStream_t stream) {
  constexpr int kKeys = heads >= 8 ? 2 : 4;  // per group of lanes at a time; registers bound it
  const int group = decode.heads / decode.kv.kv_heads;
  const dim3 grid(static_cast<unsigned>(splits),
                  static_cast<unsigned>(decode.kv.kv_heads * ((group + heads - 1) / heads)),
                  static_cast<unsigned>(sequences));
  return launch(decode_kernel<T, lanes, heads, kKeys>, grid, kThreads, Parts<lanes, heads>::kBytes,
                stream, decode);
}

template <class T, int lanes>
cudaError_t start_with_lanes(const Decode<T>& decode, int sequences, int splits,
                             cudaStream_t stream) {
  const int group = decode.heads / decode.kv.kv_heads;
  if (group == 1) return start<T, lanes, 1>(decode, sequences, splits, stream);
  if (group == 2) return start<T, lanes, 2>(decode, sequences, splits, stream);
  if (group <= 4) return start<T, lanes, 4>(decode, sequences, splits, stream);
  return start<T, lanes, 8>(decode, sequences, splits, stream);
}

}  // namespace

int decode_splits(int sequences, int kv_heads, int max_length, int multiprocessors) {
  constexpr int kBlocksEach = 4;  // of a multiprocessor
  constexpr int kFewestKeys = 2 * kSplitUnit;
  constexpr int kMost = 64;
  const int blocks = std::max(1, sequences * kv_heads);
  const int wanted = (kBlocksEach * multiprocessors + blocks - 1) / blocks;
  const int useful = std::max(1, max_length / kFewestKeys);
  return std::clamp(wanted, 1, std::min(useful, kMost));
}

std::size_t decode_workspace(int sequences, int heads, int head_dim, int splits) {
  if (splits == 1) return 0;
  return static_cast<std::size_t>(sequences) * static_cast<std::size_t>(heads) *
         static_cast<std::size_t>(splits) * static_cast<std::size_t>(head_dim + 2) * sizeof(float);
}

cudaError_t decode_attention(const KvCache& cache, const AttentionBatch& batch, int heads,
                             const void* q, std::int64_t ldq, void* out, std::int64_t ldo,
                             int splits, void* workspace, cudaStream_t stream) {
  if (!attention_fits(cache, batch, heads, ldq, ldo)) return cudaErrorNotSupported;
  if (splits < 1 || (splits > 1 && workspace == nullptr)) return cudaErrorInvalidValue;
  return with_half_type(cache.type, [&](auto element) {
    using T = decltype(element);
    auto* const partial = splits == 1 ? nullptr : static_cast<float*>(workspace);
    const Decode<T> decode{paged_kv<T>(cache, batch),
                           static_cast<const T*>(q),
                           ldq,
                           static_cast<T*>(out),
                           ldo,
                           heads,
                           score_scale(cache.head_dim),
                           partial};
    const auto run = cache.head_dim <= 64    ? start_with_lanes<T, 8>
                     : cache.head_dim <= 128 ? start_with_lanes<T, 16>
                                             : start_with_lanes<T, 32>;
    const cudaError_t error = run(decode, batch.sequences, splits, stream);
    if (error != cudaSuccess || splits == 1) return error;
    const dim3 grid(static_cast<unsigned>(heads), static_cast<unsigned>(batch.sequences));
    return launch(combine_kernel<T>, grid, kThreads, 0, stream, static_cast<const float*>(partial),
                  splits, cache.head_dim, static_cast<T*>(out), ldo);
  });
}

}  // namespace servelab::kernels::cuda
