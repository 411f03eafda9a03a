// The time of one operator on one device, from its shape and the device's profile. Pure functions:
// no state, no randomness, only +, *, /, sqrt and ceil, so that every platform gives the same
// value. All times are microseconds (double); the caller rounds to nanoseconds.
// data/fit_hardware.py fits the constants with these functions, through `servelab op-times`.
#ifndef SERVELAB_BACKEND_COST_OP_COST_H_
#define SERVELAB_BACKEND_COST_OP_COST_H_

#include <cstdint>
#include <vector>

#include "engine/backend/cost/hardware.h"
#include "engine/serve/plan.h"

namespace servelab {

// C[m, n] = A[m, k] * B[k, n] in bf16.
//   time = launch + (compute^4 + memory^4)^(1/4) + split,  least over tiles (bm, bn) and split-K s
//   compute = ceil(ceil(m/bm) * ceil(n/bn) * s / SMs) * (max(tensor core, operand feed) + wave)
// Waves are whole: one tile more than the card has SMs costs a whole wave more. The 4-norm is a
// maximum with a soft corner: near the ridge neither side hides the other fully.
double gemm_us(const HardwareProfile& hw, std::int64_t m, std::int64_t n, std::int64_t k);

// Causal attention of new tokens over themselves and earlier context, as FlashAttention runs it
// (2 on ampere, 3 on hopper, which packs the query heads of a KV head into one tile), and the KV
// cache append. Described by sums, so that any number of requests costs the same to evaluate:
//   requests; tokens = sum of n; pairs = sum of n*c + n*(n+1)/2; keys = sum of c + n
// time = launch + sqrt(compute^2 + memory^2) + append, where compute is every thread block's work
// spread over the SMs plus a part of the longest block, which runs last.
class PrefillAttention {
 public:
  PrefillAttention(const HardwareProfile& hw, int heads, int kv_heads, int head_dim);
  double us(double requests, double tokens, double pairs, double keys) const;

 private:
  PrefillConstants constants_;
  bool packs_ = false;
  double heads_ = 0;
  double group_ = 0;  // query heads per KV head
  double tile_rows_ = 0;
  double us_per_key_ = 0;  // one thread block, one key
  double inverse_sms_ = 0;
  double us_per_query_token_ = 0;  // moving q and the output
  double us_per_key_read_ = 0;     // moving k and v
  double append_us_per_token_ = 0;
};

// Whether the KV cache may still be in L2. In a served model it never is, because each layer's
// weights pass through L2 in between; in a benchmark that repeats one kernel it may be.
enum class KvResidency : std::uint8_t { kMemory, kMaybeL2 };

// Attention of one new token per request over its context (`keys` = sum of context lengths).
// One thread block per request and KV head, and more when the card would not be full: the context
// is then split into parts of at least split_keys, which are combined after. FlashAttention 2
// (ampere) splits only with grouped queries. time = launch + max(fixed, memory) + serial *
// min(fixed, memory)
class DecodeAttention {
 public:
  DecodeAttention(const HardwareProfile& hw, int heads, int kv_heads, int head_dim);
  double us(double requests, double keys, KvResidency where = KvResidency::kMemory) const;

 private:
  DecodeConstants constants_;
  bool may_split_ = false;
  double kv_heads_ = 0;
  double sms_ = 0;
  double inverse_sms_ = 0;
  double fixed_us_ = 0;  // one wave
  double bytes_per_key_ = 0;
  double us_per_byte_ = 0;
  double us_per_streamed_byte_ = 0;
  double l2_bytes_ = 0;
  double inverse_split_keys_ = 0;
};

// Sum of `bytes` over `gpus` ranks of one NVLink domain; the better of one-shot, two-shot and ring.
double all_reduce_us(const HardwareProfile& hw, int gpus, double bytes);

// A kernel that only moves `bytes`.
double elementwise_us(const HardwareProfile& hw, double bytes);

// The unmerged LoRA rows of a step.
struct LoraLoad {
  double tokens = 0;
  double rank_tokens = 0;  // sum over tokens of the rank
  double adapters = 0;
  double rank_sum = 0;  // sum over distinct adapters
  double max_rank = 0;
};

// What one or several linear layers add up to.
struct LoraShape {
  double pairs = 0;       // shrink + expand launches (q, k, v share one; gate and up too)
  double width = 0;       // sum of in + out: elements of A and B per rank
  double activation = 0;  // sum of in + 2*out: elements read and written per token
};

// pair_us * pairs + the slowest of: adapter weights and activations from memory; weights gathered
// again for each token through L2 (bgmv, mbgmv); FLOPs (sgmv, einsum).
//   bgmv    every adapter and token at the batch's largest rank
//   mbgmv   each at its own rank
//   sgmv    tokens of one adapter together: weights are read once
//   einsum  every token against every adapter of the batch: FLOPs grow with tokens * adapters
double lora_us(const HardwareProfile& hw, LoraKernel kernel, const LoraLoad& load,
               const LoraShape& shape);

// W[out, in] += B[out, rank] * A[rank, in], or -= to take it out again: a GEMM that also reads W.
double merge_us(const HardwareProfile& hw, int out, int in, int rank);

// One pinned copy over the host link, either direction.
double host_copy_us(const HardwareProfile& hw, double bytes);

// One blocking copy from the device to pageable memory (`copies`).
double pageable_to_host_us(const HardwareProfile& hw, double bytes);

// An adapter of which each of `layers` layers has matrices of these sizes, from pageable memory:
// a call for every one of them.
double pageable_load_us(const HardwareProfile& hw, int layers,
                        const std::vector<double>& matrix_bytes);

// The same as CaraServe's public OnDemand does it (lora_gpu.py): each matrix is joined to those of
// its kind that have come, which reads and writes them all once more; each of these stacks is then
// copied three times on the device, and cached memory released three times.
double rebuild_us(const HardwareProfile& hw, int layers, const std::vector<double>& matrix_bytes);

}  // namespace servelab

#endif  // SERVELAB_BACKEND_COST_OP_COST_H_
