// The forward pass of a Llama-family decoder over a mixed batch of prefill chunks and decodes. All
// members of the team run it together; a barrier stands between phases, and within one phase no
// member reads what another writes. Every row's result is the same bits whatever else is in the
// batch and however the work is shared (see kernels/gemm.h).
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include "engine/backend/cpu/cpu_device_impl.h"
#include "engine/core/check.h"
#include "engine/core/rng.h"
#include "kernels/sampling.h"

namespace servelab {
namespace {

using kernels::DType;
using kernels::LoraKind;

constexpr int kColumnGrain = kernels::kPanelColumns;
constexpr int kRowsPerMember = 4;     // fewer, and columns are shared out instead of rows
constexpr int kQueriesPerTask = 256;  // of attention: long prompts are cut up

TimeNs clock_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

// Adds the time since the last lap to a part.
class Laps {
 public:
  explicit Laps(bool on) : on_(on), last_(on ? clock_ns() : 0) {}
  void lap(TimeNs* part) {
    if (!on_) return;
    const TimeNs now = clock_ns();
    *part += now - last_;
    last_ = now;
  }

 private:
  bool on_;
  TimeNs last_;
};

}  // namespace

void CpuDevice::Impl::run(const DeviceJob& job, std::span<const DeviceAdapter* const> adapters,
                          const FoldedLayers* folded, const Arrived& arrived,
                          DeviceResult* result) {
  const TimeNs begin = clock_ns();
  parts_ = StepParts{};
  arrived_ = &arrived;
  list_hosted(job, adapters);
  lay_out(job, adapters, job.mode.exec == Exec::kUnmerged && folded == nullptr);
  open_round(0);
  SL_CHECK(rows_ >= 1 && rows_ <= options_.max_batch_tokens, "a step keeps max_batch_tokens");
  SL_CHECK(sampled_rows_ <= options_.max_batch, "a step keeps max_batch");
  folded_ = folded;
  sampling_ = &job.sampling;
  sampled_ = &result->sampled;
  result->sampled.assign(static_cast<std::size_t>(sampled_rows_), -1);
  for (int i = 0; i < model_.layers; ++i) {
    next_task_[static_cast<std::size_t>(i)].store(0, std::memory_order_relaxed);
  }
  team_.run([&](int member) { forward(member, job.sequences); });
  close_round(result);
  parts_.total = clock_ns() - begin;
  result->parts = parts_;
  result->host_layers = host_layers_;
  if (!job.wants_logits) return;
  const float* const logits = logits_.as<float>();
  result->logits.assign(logits, logits + static_cast<std::size_t>(sampled_rows_) *
                                             static_cast<std::size_t>(model_.vocab));
}

// --- sharing work ---

CpuDevice::Impl::Share CpuDevice::Impl::share_of(int member, int units) const {
  const int members = team_.size();
  const auto cut = [&](int count, int i) {
    return static_cast<int>(static_cast<std::int64_t>(count) * i / members);
  };
  if (rows_ >= kRowsPerMember * members || units == 1) {
    return {cut(rows_, member), cut(rows_, member + 1), 0, units};
  }
  return {0, rows_, cut(units, member), cut(units, member + 1)};
}

float* CpuDevice::Impl::t_of(int index) const {
  return t_.as<float>() + static_cast<std::size_t>(index) * t_floats_;
}

// --- linear layers and LoRA ---

void CpuDevice::Impl::multiply(int member, int layer, Fused which, float* y, std::int64_t ldy,
                               kernels::Store store) {
  const LayerWeights& weights = layers_[static_cast<std::size_t>(layer)];
  const auto i = static_cast<std::size_t>(which);
  kernels::Linear& linear = folded_ != nullptr
                                ? *folded_->layers[static_cast<std::size_t>(layer)][i]
                            : weights.use_merged[i] ? *weights.merged[i]
                                                    : *weights.base[i];
  linear.run(member, h_, widest_input_, y, ldy, rows_, store);
}

kernels::LoraBatch CpuDevice::Impl::batch_of(int layer, LinearLayer target,
                                             const std::vector<Segment>& segments, LoraKind kind,
                                             std::vector<kernels::LoraRows>* rows) const {
  rows->clear();
  for (const Segment& segment : segments) {
    const kernels::LoraPair* pair = segment.adapter->find(layer, target);
    if (pair != nullptr) rows->push_back({segment.row, segment.rows, pair});
  }
  return {kind, rows->data(), static_cast<int>(rows->size()), rows_, lora_width_};
}

void CpuDevice::Impl::shrink(int member, int layer, std::span<const LinearLayer> targets) {
  std::vector<kernels::LoraRows>& rows = lora_rows_[static_cast<std::size_t>(member)];
  auto* const scratch = scratch_[static_cast<std::size_t>(member)].as<float>();
  for (std::size_t i = 0; i < targets.size(); ++i) {
    for (const bool decodes : {true, false}) {
      const kernels::LoraBatch batch = batch_of(layer, targets[i], decodes ? decodes_ : prefills_,
                                                decodes ? kind_ : LoraKind::kSgmv, &rows);
      if (batch.count == 0) continue;
      kernels::lora_shrink(ops_, batch, h_, widest_input_, t_of(static_cast<int>(i)), t_stride_,
                           scratch, member, team_.size());
    }
  }
}

void CpuDevice::Impl::expand(int member, int layer, LinearLayer target, int index, float* y,
                             std::int64_t ldy, const Share& share) {
  std::vector<kernels::LoraRows>& rows = lora_rows_[static_cast<std::size_t>(member)];
  for (const bool decodes : {true, false}) {
    const kernels::LoraBatch batch = batch_of(layer, target, decodes ? decodes_ : prefills_,
                                              decodes ? kind_ : LoraKind::kSgmv, &rows);
    if (batch.count == 0) continue;
    kernels::lora_expand(ops_, batch, t_of(index), t_stride_, y, ldy, share.row_begin,
                         share.row_end, share.column_begin, share.column_end);
  }
  if (!at_workers_.empty()) add_host(target, layer, y, ldy, share);
}

// --- the phases ---

void CpuDevice::Impl::embed(int member, std::span<const Sequence> slices) {
  const auto hidden = static_cast<std::size_t>(model_.hidden);
  const auto* const table = static_cast<const std::byte*>(embedding_.data);
  const std::size_t row_bytes = hidden * kernels::bytes_of(embedding_.type);
  const Share share = share_of(member, 1);
  for (const Row& at : order_) {
    const std::span<const std::int32_t> tokens = slices[static_cast<std::size_t>(at.slice)].tokens;
    const int begin = std::max(share.row_begin, at.row);
    const int end = std::min(share.row_end, at.row + static_cast<int>(tokens.size()));
    for (int row = begin; row < end; ++row) {
      const auto token = static_cast<std::size_t>(tokens[static_cast<std::size_t>(row - at.row)]);
      ops_.widen(embedding_.type, table + token * row_bytes,
                 x_.as<float>() + static_cast<std::size_t>(row) * hidden, model_.hidden);
    }
  }
}

// Rows of this member: h = norm(x) * weight.
void CpuDevice::Impl::norm_rows(int member, const std::vector<float>& weight) {
  const Share share = share_of(member, 1);
  if (share.row_begin == share.row_end) return;
  const auto row = static_cast<std::size_t>(share.row_begin);
  ops_.rms_norm(
      x_.as<float>() + row * static_cast<std::size_t>(model_.hidden), model_.hidden, weight.data(),
      static_cast<float>(model_.rms_norm_eps), model_.hidden, options_.type,
      h_ + row * static_cast<std::size_t>(widest_input_) * kernels::bytes_of(options_.type),
      widest_input_, share.row_end - share.row_begin);
}

// Bias, rotation and the cache for this share of rows and KV heads (`column` counts KV heads).
void CpuDevice::Impl::rotate_and_write(int layer, const Share& share,
                                       std::span<const Sequence> slices) {
  const LayerWeights& weights = layers_[static_cast<std::size_t>(layer)];
  const int d = model_.head_dim;
  const int group = model_.heads / model_.kv_heads;
  const int heads = share.column_end - share.column_begin;
  if (heads == 0 || share.row_begin == share.row_end) return;
  const std::int64_t ld = widest_output_;
  float* const y = y_.as<float>();
  const int k_column = model_.heads * d;
  const int v_column = k_column + model_.kv_heads * d;
  const auto add_bias = [&](int column, int count) {
    for (int row = share.row_begin; row < share.row_end; ++row) {
      float* const out = y + row * ld;
      for (int c = column; c < column + count; ++c) {
        out[c] += weights.qkv_bias[static_cast<std::size_t>(c)];
      }
    }
  };
  if (!weights.qkv_bias.empty()) {
    add_bias(share.column_begin * group * d, heads * group * d);
    add_bias(k_column + share.column_begin * d, heads * d);
    add_bias(v_column + share.column_begin * d, heads * d);
  }
  float* const first = y + share.row_begin * ld;
  const std::int32_t* const positions = positions_.data() + share.row_begin;
  const int rows = share.row_end - share.row_begin;
  ops_.rope(first + share.column_begin * group * d, ld, positions, rope_.cos.data(),
            rope_.sin.data(), heads * group, d, rows);
  ops_.rope(first + k_column + share.column_begin * d, ld, positions, rope_.cos.data(),
            rope_.sin.data(), heads, d, rows);
  for (const Row& at : order_) {
    const Sequence& slice = slices[static_cast<std::size_t>(at.slice)];
    const int begin = std::max(share.row_begin, at.row);
    const int end = std::min(share.row_end, at.row + static_cast<int>(slice.tokens.size()));
    if (begin >= end) continue;
    const kernels::AttentionTask task{slice.context + begin - at.row, end - begin,
                                      slice.blocks.data()};
    ops_.kv_write(weights.cache, task, y + begin * ld + k_column, ld, y + begin * ld + v_column, ld,
                  share.column_begin, share.column_end);
  }
}

// Tasks are (slice, block of queries, KV heads); members take the next one as they become free. A
// decode's heads go to a member in one stretch, as they lie in memory.
void CpuDevice::Impl::attention_phase(int member, int layer, std::span<const Sequence> slices) {
  const LayerWeights& weights = layers_[static_cast<std::size_t>(layer)];
  const int group = model_.heads / model_.kv_heads;
  const std::int64_t ld = widest_output_;
  std::atomic<int>& next = next_task_[static_cast<std::size_t>(layer)];
  int mine = next.fetch_add(1, std::memory_order_relaxed);
  int task_index = 0;
  for (const Row& at : order_) {
    const Sequence& slice = slices[static_cast<std::size_t>(at.slice)];
    const auto tokens = static_cast<int>(slice.tokens.size());
    const kernels::AttentionTask task{slice.context, tokens, slice.blocks.data()};
    std::byte* const out = h_ + static_cast<std::size_t>(at.row) *
                                    static_cast<std::size_t>(widest_input_) *
                                    kernels::bytes_of(options_.type);
    const int heads = tokens == 1 ? (model_.kv_heads + team_.size() - 1) / team_.size() : 1;
    for (int query = 0; query < tokens; query += kQueriesPerTask) {
      for (int first = 0; first < model_.kv_heads; first += heads, ++task_index) {
        if (task_index != mine) continue;
        for (int head = first; head < std::min(first + heads, model_.kv_heads); ++head) {
          ops_.attention(weights.cache, task, head, group, y_.as<float>() + at.row * ld, ld, out,
                         widest_input_, query, std::min(tokens, query + kQueriesPerTask),
                         scratch_[static_cast<std::size_t>(member)].data());
        }
        mine = next.fetch_add(1, std::memory_order_relaxed);
      }
    }
  }
}

void CpuDevice::Impl::forward(int member, std::span<const Sequence> slices) {
  const bool leads = member == 0;
  const std::int64_t wide = widest_output_;
  const int d = model_.head_dim;
  const int group = model_.heads / model_.kv_heads;
  float* const x = x_.as<float>();
  float* const y = y_.as<float>();
  Laps laps(leads);
  embed(member, slices);
  norm_rows(member, layers_.front().attention_norm);
  team_.barrier();
  for (int l = 0; l < model_.layers; ++l) {
    const LayerWeights& layer = layers_[static_cast<std::size_t>(l)];
    if (may_take_over_) {
      team_.barrier();
      if (leads) take_over(l);
      team_.barrier();
    }
    if (leads && !hosted_.empty()) ++host_layers_;
    laps.lap(&parts_.dense);
    if (leads) post_host(l, Fused::kQkv);
    if (lora_) shrink(member, l, members(Fused::kQkv));
    laps.lap(&parts_.lora);
    multiply(member, l, Fused::kQkv, y, wide, kernels::Store::kSet);
    if (leads) await_host(l, Fused::kQkv);
    team_.barrier();
    laps.lap(&parts_.dense);
    const Share heads = share_of(member, model_.kv_heads);
    if (lora_) {
      for (int i = 0; i < 3; ++i) {
        const LinearLayer target = members(Fused::kQkv)[static_cast<std::size_t>(i)];
        const int unit = i == 0 ? group * d : d;
        const Share columns{heads.row_begin, heads.row_end, heads.column_begin * unit,
                            heads.column_end * unit};
        expand(member, l, target, i, y + place_of(shapes_, target).begin, wide, columns);
      }
    }
    laps.lap(&parts_.lora);
    rotate_and_write(l, heads, slices);
    team_.barrier();
    attention_phase(member, l, slices);
    team_.barrier();
    laps.lap(&parts_.attention);
    if (leads) post_host(l, Fused::kO);
    if (lora_) shrink(member, l, members(Fused::kO));
    laps.lap(&parts_.lora);
    multiply(member, l, Fused::kO, x, model_.hidden, kernels::Store::kAdd);
    if (leads) await_host(l, Fused::kO);
    team_.barrier();
    laps.lap(&parts_.dense);
    const Share own_rows = [&] {
      Share share = share_of(member, 1);
      share.column_end = model_.hidden;
      return share;
    }();
    if (lora_) expand(member, l, LinearLayer::kO, 0, x, model_.hidden, own_rows);
    laps.lap(&parts_.lora);
    norm_rows(member, layer.ffn_norm);
    team_.barrier();
    laps.lap(&parts_.dense);
    if (leads) post_host(l, Fused::kGateUp);
    if (lora_) shrink(member, l, members(Fused::kGateUp));
    laps.lap(&parts_.lora);
    multiply(member, l, Fused::kGateUp, y, wide, kernels::Store::kSet);
    if (leads) await_host(l, Fused::kGateUp);
    team_.barrier();
    laps.lap(&parts_.dense);
    swiglu_phase(member, l);
    team_.barrier();
    laps.lap(&parts_.dense);
    if (leads) post_host(l, Fused::kDown);
    if (lora_) shrink(member, l, members(Fused::kDown));
    laps.lap(&parts_.lora);
    multiply(member, l, Fused::kDown, x, model_.hidden, kernels::Store::kAdd);
    if (leads) await_host(l, Fused::kDown);
    team_.barrier();
    laps.lap(&parts_.dense);
    if (lora_) expand(member, l, LinearLayer::kDown, 0, x, model_.hidden, own_rows);
    laps.lap(&parts_.lora);
    if (l + 1 < model_.layers) {
      norm_rows(member, layers_[static_cast<std::size_t>(l) + 1].attention_norm);
      team_.barrier();
    }
  }
  team_.barrier();
  head(member);
  team_.barrier();
  choose(member, slices);
  laps.lap(&parts_.dense);
}

void CpuDevice::Impl::swiglu_phase(int member, int layer) {
  const Share blocks = share_of(member, (model_.ffn + kColumnGrain - 1) / kColumnGrain);
  const int begin = blocks.column_begin * kColumnGrain;
  const int end = std::min(blocks.column_end * kColumnGrain, model_.ffn);
  if (begin >= end || blocks.row_begin == blocks.row_end) return;
  const std::int64_t ld = widest_output_;
  float* const gate = y_.as<float>();
  float* const up = gate + model_.ffn;
  if (lora_) {
    const Share columns{blocks.row_begin, blocks.row_end, begin, end};
    expand(member, layer, LinearLayer::kGate, 0, gate, ld, columns);
    expand(member, layer, LinearLayer::kUp, 1, up, ld, columns);
  }
  const std::int64_t at = blocks.row_begin * ld + begin;
  const std::int64_t out = static_cast<std::int64_t>(blocks.row_begin) * widest_input_ + begin;
  ops_.swiglu(gate + at, up + at, ld, end - begin, options_.type,
              h_ + out * static_cast<std::int64_t>(kernels::bytes_of(options_.type)), widest_input_,
              blocks.row_end - blocks.row_begin);
}

// The final norm of the rows that sample, packed together, and the LM head.
void CpuDevice::Impl::head(int member) {
  const auto bytes = kernels::bytes_of(options_.type);
  if (member == 0) {
    for (int i = 0; i < sampled_rows_; ++i) {
      const auto row = static_cast<std::size_t>(sampling_rows_[static_cast<std::size_t>(i)]);
      ops_.rms_norm(
          x_.as<float>() + row * static_cast<std::size_t>(model_.hidden), model_.hidden,
          final_norm_.data(), static_cast<float>(model_.rms_norm_eps), model_.hidden, options_.type,
          h_ + static_cast<std::size_t>(i) * static_cast<std::size_t>(widest_input_) * bytes,
          widest_input_, 1);
    }
  }
  team_.barrier();
  lm_head_->run(member, h_, widest_input_, logits_.as<float>(), model_.vocab, sampled_rows_,
                kernels::Store::kSet);
}

void CpuDevice::Impl::choose(int member, std::span<const Sequence> slices) {
  const auto vocab = static_cast<std::size_t>(model_.vocab);
  for (int i = member; i < sampled_rows_; i += team_.size()) {
    const auto row = static_cast<std::size_t>(i);
    const float* const logits = logits_.as<float>() + row * vocab;
    std::int32_t token;
    if (sampling_->temperature <= 0) {
      token = kernels::argmax(logits, model_.vocab);
    } else {
      const auto slice = static_cast<std::size_t>(sampling_slices_[row]);
      RngStream draw(sampling_->seed, "sampling", slices[slice].draw);
      token =
          kernels::sample_top_p(logits, model_.vocab, static_cast<float>(sampling_->temperature),
                                static_cast<float>(sampling_->top_p), draw.uniform(),
                                scratch_[static_cast<std::size_t>(member)].data());
    }
    (*sampled_)[row] = token;
  }
}

}  // namespace servelab
