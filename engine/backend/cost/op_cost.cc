#include "engine/backend/cost/op_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace servelab {
namespace {

constexpr double kUsPerSecond = 1e6;
constexpr double kUsPerNs = 1e-3;
constexpr double kBytesPerElement = 2;  // bf16
constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr double kKStep = 64;        // depth of a GEMM's inner loop step
constexpr double kMinSplitK = 128;   // split-K parts are not shallower
constexpr double kL2OverDram = 2.0;  // assumed for traffic that stays in L2 (split sums, gathers)
constexpr double kAppendHeads = 4;   // KV heads that the append kernel handles one after another
constexpr double kAmpereQueryTile = 64;
constexpr double kHopperQueryTile = 128;
// A KV cache below 0.8 of L2 stays there, above 1.3 none of it does.
constexpr double kL2Full = 1.3;
constexpr double kL2Ramp = 0.5;

struct Tile {
  double m;
  double n;
};
constexpr Tile kAmpereTiles[] = {{256, 128}, {128, 256}, {128, 128}, {128, 64}, {64, 128}, {64, 64},
                                 {64, 256},  {256, 64},  {32, 64},   {16, 64},  {32, 128}};
constexpr Tile kHopperTiles[] = {{128, 256}, {256, 128}, {128, 128}, {64, 256},
                                 {256, 64},  {64, 128},  {128, 64},  {64, 64},
                                 {16, 64},   {32, 64},   {16, 128},  {64, 32}};
constexpr double kSplits[] = {1, 2, 3, 4, 6, 8, 16};

double square(double x) { return x * x; }

double us_of_flops(const HardwareProfile& hw, double flops, double fraction) {
  return flops / (hw.peak_flops * fraction) * kUsPerSecond;
}
double us_of_bytes(const HardwareProfile& hw, double bytes, double fraction) {
  return bytes / (hw.memory_bytes_per_s * fraction) * kUsPerSecond;
}

// One tile shape of a GEMM, with the best split of K.
double tiled_gemm_us(const HardwareProfile& hw, const Tile& tile, double m, double n, double k,
                     double memory4) {
  const GemmConstants& c = hw.gemm;
  const double tiles = std::ceil(m / tile.m) * std::ceil(n / tile.n);
  double best = kInfinity;
  for (const double split : kSplits) {
    if (split > 1 && k / split < kMinSplitK) break;
    const double waves = std::ceil(tiles * split / hw.sm_count);
    const double depth = std::ceil(k / split / kKStep) * kKStep;
    const double tensor =
        us_of_flops(hw, 2 * tile.m * tile.n * depth * hw.sm_count, c.compute_fraction);
    const double feed = 2 * (tile.m + tile.n) * depth / c.sm_feed_bytes_per_s * kUsPerSecond;
    double compute = waves * (std::max(tensor, feed) + c.wave_us);
    compute *= 1 + c.throttle * compute / (compute + c.throttle_half_us);
    double time = std::sqrt(std::sqrt(square(square(compute)) + memory4));
    if (split > 1) time += c.split_us + us_of_bytes(hw, 4 * m * n * (split + 1), kL2OverDram);
    best = std::min(best, time);
  }
  return best;
}

}  // namespace

double gemm_us(const HardwareProfile& hw, std::int64_t m, std::int64_t n, std::int64_t k) {
  if (m <= 0 || n <= 0 || k <= 0) return 0;
  const double dm = static_cast<double>(m);
  const double dn = static_cast<double>(n);
  const double dk = static_cast<double>(k);
  const double memory =
      us_of_bytes(hw, kBytesPerElement * (dm * dk + dn * dk + dm * dn), hw.gemm.bandwidth_fraction);
  const double memory4 = square(square(memory));
  const std::span<const Tile> tiles =
      hw.is_hopper() ? std::span<const Tile>(kHopperTiles) : std::span<const Tile>(kAmpereTiles);
  double best = kInfinity;
  for (const Tile& tile : tiles) {
    best = std::min(best, tiled_gemm_us(hw, tile, dm, dn, dk, memory4));
  }
  return hw.gemm.launch_us + best;
}

PrefillAttention::PrefillAttention(const HardwareProfile& hw, int heads, int kv_heads, int head_dim)
    : constants_(hw.prefill),
      packs_(hw.is_hopper()),
      heads_(heads),
      group_(static_cast<double>(heads) / kv_heads),
      tile_rows_(hw.is_hopper() ? kHopperQueryTile : kAmpereQueryTile),
      inverse_sms_(1.0 / hw.sm_count) {
  const PrefillConstants& c = constants_;
  us_per_key_ = us_of_flops(hw, 4.0 * head_dim * tile_rows_ * hw.sm_count, c.compute_fraction);
  const double row_bytes = kBytesPerElement * head_dim;
  us_per_query_token_ = us_of_bytes(hw, 2 * row_bytes * heads, c.bandwidth_fraction);
  us_per_key_read_ = us_of_bytes(hw, 2 * row_bytes * kv_heads, c.bandwidth_fraction);
  append_us_per_token_ = std::max(std::min<double>(kv_heads, kAppendHeads) * c.append_ns * kUsPerNs,
                                  us_of_bytes(hw, 4 * row_bytes * kv_heads, 1.0));
}

double PrefillAttention::us(double requests, double tokens, double pairs, double keys) const {
  if (tokens <= 0) return 0;
  const PrefillConstants& c = constants_;
  const double mean_new = tokens / requests;
  const double packed = packs_ || mean_new <= 1 ? group_ : 1.0;
  const double tile_tokens = tile_rows_ / packed;
  // Tiles per head. Rows that only pad a request's last tile see that request's whole context.
  const double full = tokens / tile_tokens;
  const double padded = requests * std::ceil(mean_new / tile_tokens) - full;
  const double mean_keys = pairs / tokens;
  const double tile_keys = std::max(mean_keys + std::min(mean_new, tile_tokens) / 2, c.min_keys);
  const double last_keys = std::max(keys / requests, c.min_keys);
  const double work =
      heads_ / packed * inverse_sms_ *
      ((full + padded) * c.cta_us + us_per_key_ * (full * tile_keys + padded * last_keys));
  const double longest = c.cta_us + us_per_key_ * std::max(last_keys, mean_keys);
  const double compute = work + c.tail_fraction * longest;
  const double memory = tokens * us_per_query_token_ + keys * us_per_key_read_;
  return c.launch_us + std::sqrt(square(compute) + square(memory)) + tokens * append_us_per_token_;
}

DecodeAttention::DecodeAttention(const HardwareProfile& hw, int heads, int kv_heads, int head_dim)
    : constants_(hw.decode),
      may_split_(hw.is_hopper() || heads > kv_heads),
      kv_heads_(kv_heads),
      sms_(hw.sm_count),
      inverse_sms_(1.0 / hw.sm_count),
      fixed_us_(hw.decode.cta_us + hw.decode.row_us * (static_cast<double>(heads) / kv_heads)),
      bytes_per_key_(2 * kBytesPerElement * head_dim),
      us_per_byte_(us_of_bytes(hw, 1, hw.decode.bandwidth_fraction)),
      us_per_streamed_byte_(kUsPerSecond / hw.decode.stream_bytes_per_s),
      l2_bytes_(static_cast<double>(hw.l2_bytes)),
      inverse_split_keys_(1.0 / hw.decode.split_keys) {}

double DecodeAttention::us(double requests, double keys, KvResidency where) const {
  if (requests <= 0) return 0;
  const DecodeConstants& c = constants_;
  const double mean_keys = keys / requests;
  const double ctas = requests * kv_heads_;
  double split = 1;
  if (may_split_ && ctas < sms_) {
    split = std::max(1.0, std::min(sms_ / ctas, mean_keys * inverse_split_keys_));
  }
  const double waves = std::ceil(ctas * split * inverse_sms_ - 1e-9);
  const double fixed = waves * fixed_us_;
  const double stream = waves * mean_keys / split * bytes_per_key_ * us_per_streamed_byte_;
  const double bytes = keys * kv_heads_ * bytes_per_key_;
  double memory = bytes * us_per_byte_;
  if (where == KvResidency::kMaybeL2) {
    const double hit = std::clamp((kL2Full - bytes / l2_bytes_) / kL2Ramp, 0.0, 1.0);
    memory *= 1 - hit + hit / c.l2_speedup;
  }
  memory = std::max(memory, stream);
  const double body = std::max(fixed, memory) + c.serial_fraction * std::min(fixed, memory);
  const double combine = c.combine_us * std::min(split - 1, 1.0);
  return c.launch_us + body + combine + requests * c.request_ns * kUsPerNs;
}

double all_reduce_us(const HardwareProfile& hw, int gpus, double bytes) {
  if (gpus <= 1 || bytes <= 0) return 0;
  const AllReduceConstants& c = hw.all_reduce;
  const double ranks = gpus;
  const double share = 2 * (ranks - 1) / ranks * bytes;
  const double ring =
      c.ring_us + c.ring_peer_us * ranks + share / c.ring_bytes_per_s * kUsPerSecond;
  if (bytes > c.direct_limit_bytes) return ring;
  const double base = c.direct_us + c.direct_peer_us * ranks;
  const double us_per_byte = kUsPerSecond / c.direct_bytes_per_s;
  const double one_shot = base + (ranks - 1) * bytes * us_per_byte;
  const double two_shot = base + c.two_shot_us + share * us_per_byte;
  return std::min(std::min(one_shot, two_shot), ring);
}

double elementwise_us(const HardwareProfile& hw, double bytes) {
  if (bytes <= 0) return 0;
  return hw.elementwise.launch_us + us_of_bytes(hw, bytes, hw.elementwise.bandwidth_fraction);
}

double lora_us(const HardwareProfile& hw, LoraKernel kernel, const LoraLoad& load,
               const LoraShape& shape) {
  if (load.tokens <= 0 || shape.pairs <= 0) return 0;
  const LoraConstants& c = hw.lora;
  const kernels::LoraTraits& how = kernels::traits(kernel);
  // Ranks read from memory.
  const double weight_rank = how.padded ? load.adapters * load.max_rank : load.rank_sum;
  // (token, rank) products: through L2 where each row reads its own pair, else on tensor cores.
  const double products = how.all_pairs ? load.tokens * load.adapters * load.max_rank
                          : how.padded  ? load.tokens * load.max_rank
                                        : load.rank_tokens;
  const double gathered = how.by_row ? products : 0;
  const double flop_rank = how.by_row ? 0 : products;
  const double bandwidth_fraction =
      how.by_row && how.padded ? c.padded_bandwidth_fraction : c.bandwidth_fraction;
  const double memory = us_of_bytes(
      hw, kBytesPerElement * (weight_rank * shape.width + load.tokens * shape.activation),
      bandwidth_fraction);
  const double gather = us_of_bytes(hw, kBytesPerElement * gathered * shape.width, kL2OverDram);
  const double flops = us_of_flops(hw, 2 * flop_rank * shape.width, c.compute_fraction);
  return shape.pairs * c.pair_us + std::max(std::max(memory, gather), flops);
}

double merge_us(const HardwareProfile& hw, int out, int in, int rank) {
  const double weight_bytes = kBytesPerElement * static_cast<double>(out) * in;
  return gemm_us(hw, out, in, rank) + us_of_bytes(hw, weight_bytes, hw.gemm.bandwidth_fraction);
}

double host_copy_us(const HardwareProfile& hw, double bytes) {
  if (bytes <= 0) return 0;
  return hw.host_link_latency_us +
         bytes / (hw.host_link_bytes_per_s * hw.host_link_fraction) * kUsPerSecond;
}

double pageable_to_host_us(const HardwareProfile& hw, double bytes) {
  if (bytes <= 0) return 0;
  return hw.copies.call_us + bytes / hw.copies.pageable_to_host_bytes_per_s * kUsPerSecond;
}

double pageable_load_us(const HardwareProfile& hw, int layers,
                        const std::vector<double>& matrix_bytes) {
  double us = 0;
  for (const double bytes : matrix_bytes) {
    us += hw.copies.call_us + bytes / hw.copies.pageable_to_device_bytes_per_s * kUsPerSecond;
  }
  return us * layers;
}

double rebuild_us(const HardwareProfile& hw, int layers, const std::vector<double>& matrix_bytes) {
  constexpr int kPasses = 3;         // clone, transpose, and back to one stretch of memory
  constexpr int kCacheReleases = 3;  // for a whole adapter
  constexpr double kReadAndWritten = 2;
  double us =
      pageable_load_us(hw, layers, matrix_bytes) + kCacheReleases * hw.copies.cache_release_us;
  for (const double bytes : matrix_bytes) {
    for (int come = 1; come <= layers; ++come) {
      us += elementwise_us(hw, kReadAndWritten * come * bytes);
    }
    us += kPasses * elementwise_us(hw, kReadAndWritten * layers * bytes);
  }
  return us;
}

}  // namespace servelab
