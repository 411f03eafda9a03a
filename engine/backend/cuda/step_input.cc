#include "engine/backend/cuda/step_input.h"

#include <algorithm>
#include <bit>

#include "engine/core/check.h"
#include "engine/core/rng.h"

namespace servelab::cuda {
namespace {

using kernels::LoraKind;
using kernels::cuda::LoraBatch;

constexpr int kShortestLength = 256;  // of a bucket of lengths
constexpr int kShortestSegment = 64;  // of a bucket of segments: a tile of SGMV's rows

int bucket_of(int count) { return static_cast<int>(std::bit_ceil(static_cast<unsigned>(count))); }

std::size_t round_up(std::size_t bytes) { return (bytes + 15) / 16 * 16; }

// Where each array begins; visits them in the order in which they lie.
class Cutter {
 public:
  Cutter(std::byte* host, std::byte* device) : host_(host), device_(device) {}
  template <class T>
  void cut(std::size_t count, Mirrored<T>* out) {
    if (host_ != nullptr) {
      *out = {reinterpret_cast<T*>(host_ + offset_), reinterpret_cast<T*>(device_ + offset_)};
    }
    offset_ += round_up(count * sizeof(T));
  }
  std::size_t offset() const { return offset_; }

 private:
  std::byte* host_;
  std::byte* device_;
  std::size_t offset_ = 0;
};

// Where `adapter` is in the list, which gets it at its end if it was not.
template <class Adapter>
std::size_t place_in(std::vector<const Adapter*>* list, const DeviceAdapter* adapter) {
  const auto* const wanted = static_cast<const Adapter*>(adapter);
  const auto found = std::find(list->begin(), list->end(), wanted);
  const auto at = static_cast<std::size_t>(found - list->begin());
  if (found == list->end()) list->push_back(wanted);
  return at;
}

bool decodes(const Sequence& sequence) {
  return sequence.tokens.size() == 1 && sequence.context > 0;
}

}  // namespace

int StepInput::most_sequences(const DeviceLimits& limits) { return bucket_of(limits.max_batch); }
int StepInput::most_rows(const DeviceLimits& limits) {
  return std::max(limits.max_batch_tokens, most_sequences(limits));
}
int StepInput::most_positions(const ModelConfig& model, const DeviceLimits& limits) {
  const std::int64_t cache = limits.kv_blocks * limits.block_tokens;
  return static_cast<int>(std::min<std::int64_t>(model.max_context_tokens, cache));
}

StepInput::StepInput(const ModelConfig& model, const DeviceLimits& limits, kernels::DType type,
                     std::byte* host, std::byte* device)
    : block_tokens_(limits.block_tokens),
      max_positions_(most_positions(model, limits)),
      type_(type) {
  const auto sequences = static_cast<std::size_t>(most_sequences(limits));
  const auto rows = static_cast<std::size_t>(most_rows(limits));
  Cutter cutter(host, device);
  cutter.cut(sequences, &uniforms);
  for (auto* each : {&ids, &positions, &cache_rows, &slots}) cutter.cut(rows, each);
  cutter.cut(sequences, &contexts);
  for (auto* each : {&decode_begin, &prefill_begin}) cutter.cut(sequences + 1, each);
  for (int i = 0; i < 2; ++i) {
    cutter.cut(sequences + 1, &segment_begin_[i]);
    cutter.cut(sequences, &segment_slots_[i]);
  }
  cutter.cut(sequences, &distinct_);
  cutter.cut(sequences, &sample_rows);
  tables_offset_ = cutter.offset();
  cutter.cut(
      sequences * static_cast<std::size_t>((max_positions_ + block_tokens_ - 1) / block_tokens_),
      &tables);
  used_bytes_ = cutter.offset();
}

std::size_t StepInput::bytes(const ModelConfig& model, const DeviceLimits& limits) {
  return StepInput(model, limits, kernels::DType::kBf16, nullptr, nullptr).used_bytes_;
}

bool StepInput::only_decodes(const std::vector<Sequence>& sequences) {
  return std::all_of(sequences.begin(), sequences.end(), [](const Sequence& s) {
    return decodes(s) && s.samples && (s.adapter == kBaseModel || s.lora == LoraSite::kDevice);
  });
}

void StepInput::order(const DeviceJob& job, std::span<const DeviceAdapter* const> adapters) {
  adapters_.clear();
  host_adapters_.clear();
  places_.clear();
  const auto on_host = [&job](std::size_t i) { return job.sequences[i].lora == LoraSite::kHost; };
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    if (adapters[i] == nullptr) continue;
    on_host(i) ? place_in(&host_adapters_, adapters[i]) : place_in(&adapters_, adapters[i]);
  }
  const std::size_t on_device = adapters_.size();
  for (std::size_t i = 0; i < job.sequences.size(); ++i) {
    std::size_t at = on_device + host_adapters_.size();
    if (!adapters.empty() && adapters[i] != nullptr) {
      at = on_host(i) ? on_device + place_in(&host_adapters_, adapters[i])
                      : place_in(&adapters_, adapters[i]);
    }
    places_.push_back({static_cast<int>(i), 0, at, !decodes(job.sequences[i])});
  }
  std::stable_sort(places_.begin(), places_.end(), [](const Place& a, const Place& b) {
    return a.prefill != b.prefill ? a.prefill < b.prefill : a.adapter < b.adapter;
  });
}

void StepInput::lay_out_host(const DeviceJob& job) {
  host_.rows = {};
  host_.groups.clear();
  if (host_adapters_.empty()) return;
  for (const Place& at : places_) {
    const std::size_t behind = at.adapter - adapters_.size();  // wraps around for those before
    if (behind >= host_adapters_.size()) continue;
    const HostAdapter* const adapter = host_adapters_[behind];
    const auto tokens =
        static_cast<int>(job.sequences[static_cast<std::size_t>(at.sequence)].tokens.size());
    const int packed = host_.rows.rows();
    const int stretch = at.prefill ? 1 : 0;
    if (host_.rows.count[stretch] == 0) host_.rows.begin[stretch] = at.row;
    host_.rows.count[stretch] += tokens;
    if (host_.groups.empty() || host_.groups.back().adapter != adapter) {
      host_.groups.push_back({adapter, packed, 0});
    }
    host_.groups.back().count += tokens;
  }
}

void StepInput::write_slots(const Place& at, int tokens) {
  const int slot = at.adapter < adapters_.size() ? adapters_[at.adapter]->slot() : -1;
  std::fill_n(slots.host + at.row, tokens, slot);
}

void StepInput::write_sequence(const Sequence& sequence, const Place& at, int index) {
  write_slots(at, static_cast<int>(sequence.tokens.size()));
  contexts.host[index] = sequence.context;
  for (std::size_t i = 0; i < sequence.tokens.size(); ++i) {
    const std::size_t row = static_cast<std::size_t>(at.row) + i;
    const int position = sequence.context + static_cast<int>(i);
    const auto block = static_cast<std::size_t>(position / block_tokens_);
    ids.host[row] = sequence.tokens[i];
    positions.host[row] = position;
    cache_rows.host[row] = sequence.blocks[block] * block_tokens_ + position % block_tokens_;
  }
  std::int32_t* const table =
      tables.host + static_cast<std::ptrdiff_t>(index) * shape_.table_stride;
  const std::size_t used =
      std::min(sequence.blocks.size(), static_cast<std::size_t>(shape_.table_stride));
  std::copy_n(sequence.blocks.begin(), used, table);
  std::fill(table + used, table + shape_.table_stride, 0);
}

const StepShape& StepInput::lay_out(const DeviceJob& job,
                                    std::span<const DeviceAdapter* const> adapters, bool bucketed) {
  shape_ = StepShape{};
  order(job, adapters);
  int longest = 0;
  last_row_.resize(job.sequences.size());
  for (Place& at : places_) {
    const Sequence& sequence = job.sequences[static_cast<std::size_t>(at.sequence)];
    const auto tokens = static_cast<int>(sequence.tokens.size());
    at.row = shape_.rows;
    shape_.rows += tokens;
    last_row_[static_cast<std::size_t>(at.sequence)] = shape_.rows - 1;
    const int length = sequence.context + tokens;
    longest = std::max(longest, length);
    if (at.prefill) {
      prefill_begin.host[shape_.prefills++] = at.row - shape_.decodes;
      shape_.prefill_length = std::max(shape_.prefill_length, length);
      shape_.prefill_queries = std::max(shape_.prefill_queries, tokens);
    } else {
      shape_.decode_length = std::max(shape_.decode_length, length);
      ++shape_.decodes;
    }
  }
  prefill_begin.host[shape_.prefills] = shape_.rows - shape_.decodes;
  SL_CHECK(longest <= max_positions_, "a context fits the model and the cache");
  if (bucketed) {
    longest = std::min(max_positions_, std::max(kShortestLength, bucket_of(longest)));
    shape_.decode_length = longest;
  }
  shape_.table_stride = (longest + block_tokens_ - 1) / block_tokens_;
  int index = 0;
  for (const Place& at : places_) {
    write_sequence(job.sequences[static_cast<std::size_t>(at.sequence)], at, index++);
  }
  lay_out_host(job);
  lay_out_samples(job);
  if (bucketed) pad(bucket_of(shape_.decodes));
  for (int i = 0; i <= shape_.decodes; ++i) decode_begin.host[i] = i;
  lay_out_lora(job.mode.kernel, bucketed);
  used_bytes_ = tables_offset_ + static_cast<std::size_t>(shape_.decodes + shape_.prefills) *
                                     static_cast<std::size_t>(shape_.table_stride) *
                                     sizeof(std::int32_t);
  return shape_;
}

// The host's adapters are numbered right behind the device's, and so are their rows.
const StepShape& StepInput::take_over(std::span<const CudaAdapter* const> adapters,
                                      LoraKernel kernel) {
  const std::size_t first = adapters_.size();
  adapters_.insert(adapters_.end(), adapters.begin(), adapters.end());
  host_adapters_.clear();
  host_ = {};
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const Place& at = places_[i];
    if (at.adapter < first || at.adapter >= adapters_.size()) continue;
    const int end = i + 1 < places_.size() ? places_[i + 1].row : shape_.rows;
    write_slots(at, end - at.row);
  }
  shape_.lora_parts = 0;
  lay_out_lora(kernel, false);
  return shape_;
}

// Rows that nothing comes from: no token, no cache row, no adapter, no context.
void StepInput::pad(int bucket) {
  for (int row = shape_.rows; row < bucket; ++row) {
    for (const auto* each : {&ids, &positions, &cache_rows, &slots, &contexts, &sample_rows}) {
      each->host[row] = -1;
    }
    uniforms.host[row] = 0;
    std::int32_t* const table =
        tables.host + static_cast<std::ptrdiff_t>(row) * shape_.table_stride;
    std::fill(table, table + shape_.table_stride, 0);
  }
  shape_.rows = shape_.decodes = shape_.sampled = bucket;
}

void StepInput::lay_out_samples(const DeviceJob& job) {
  for (std::size_t i = 0; i < job.sequences.size(); ++i) {
    if (!job.sequences[i].samples) continue;
    sample_rows.host[shape_.sampled] = last_row_[i];
    uniforms.host[shape_.sampled] = 0;
    if (job.sampling.temperature > 0) {
      RngStream draw(job.sampling.seed, "sampling", job.sequences[i].draw);
      uniforms.host[shape_.sampled] = draw.uniform();
    }
    ++shape_.sampled;
  }
}

int StepInput::segments_of(int first_row, int rows, Mirrored<std::int32_t> begin,
                           Mirrored<std::int32_t> segment_slots, LoraBatch* batch) const {
  int covered = 0;
  batch->segments = 0;
  batch->max_segment_rows = 0;
  for (int row = 0; row < rows; ++row) {
    const std::int32_t slot = slots.host[first_row + row];
    if (slot < 0) break;  // the base model's rows are last
    if (batch->segments == 0 || segment_slots.host[batch->segments - 1] != slot) {
      segment_slots.host[batch->segments] = slot;
      begin.host[batch->segments++] = row;
    }
    covered = row + 1;
    batch->max_segment_rows =
        std::max(batch->max_segment_rows, covered - begin.host[batch->segments - 1]);
  }
  begin.host[batch->segments] = covered;
  batch->segment_begin = begin.device;
  batch->segment_slots = segment_slots.device;
  return covered;
}

// One prefill is one SGMV segment whatever the plan's kernel is for decodes; the one-hot einsum
// takes all rows alike.
void StepInput::lay_out_lora(LoraKernel kernel, bool bucketed) {
  if (adapters_.empty()) return;
  LoraBatch common;
  common.type = type_;
  for (const CudaAdapter* adapter : adapters_) {
    common.width = std::max(common.width, adapter->width());
  }
  const bool einsum = kernels::traits(kernel).all_pairs;
  const int ends[] = {einsum ? shape_.rows : shape_.decodes, shape_.rows};
  int row = 0;
  for (int i = 0; i < 2; ++i) {
    const int rows = ends[i] - row;
    if (rows == 0) continue;
    LoraPart& part = shape_.lora[shape_.lora_parts];
    part = {row, i == 0 ? kernel : LoraKind::kSgmv, common};
    part.batch.slots = slots.device + row;
    part.batch.rows = rows;
    if (!einsum) {
      const int covered = segments_of(row, rows, segment_begin_[i], segment_slots_[i], &part.batch);
      if (covered == 0) {
        row = ends[i];
        continue;
      }
      if (!bucketed) part.batch.rows = covered;
    }
    row = ends[i];
    ++shape_.lora_parts;
    if (!bucketed || part.kind != LoraKind::kSgmv) continue;
    // Empty segments, so that the launch depends on the buckets of rows and of the longest segment.
    // That bound is not the rows' own: the grid would grow with their square, all but empty.
    for (int s = part.batch.segments; s < shape_.decodes; ++s) {
      segment_begin_[i].host[s + 1] = segment_begin_[i].host[s];
      segment_slots_[i].host[s] = -1;
    }
    part.batch.segments = shape_.decodes;
    part.batch.max_segment_rows = std::min(
        shape_.decodes, bucket_of(std::max(part.batch.max_segment_rows, kShortestSegment)));
  }
  if (!einsum) return;
  LoraBatch& batch = shape_.lora[0].batch;
  batch.distinct = 0;  // one that was on both sides is in adapters_ twice
  batch.distinct_slots = distinct_.device;
  for (const CudaAdapter* adapter : adapters_) {
    std::int32_t* const end = distinct_.host + batch.distinct;
    if (std::find(distinct_.host, end, adapter->slot()) != end) continue;
    distinct_.host[batch.distinct++] = adapter->slot();
  }
}

}  // namespace servelab::cuda
