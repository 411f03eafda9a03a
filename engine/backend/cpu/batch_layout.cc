// How the slices of a step lie in the batch: which rows they take, and which segments of rows
// belong to one adapter.
#include <algorithm>

#include "engine/backend/cpu/cpu_device_impl.h"

namespace servelab {

// Rows of one adapter lie together, decodes before prefills; adapters in order of first appearance.
void CpuDevice::Impl::lay_out(const DeviceJob& job,
                              std::span<const DeviceAdapter* const> adapters_of, bool unmerged) {
  const std::vector<Sequence>& slices = job.sequences;
  std::vector<const CpuAdapter*> adapters;
  struct Key {
    std::size_t adapter;
    bool prefill;
    int slice;
  };
  std::vector<Key> keys;
  sampling_slices_.clear();
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const CpuAdapter* const adapter =
        unmerged ? static_cast<const CpuAdapter*>(adapters_of[i]) : nullptr;
    auto found = std::find(adapters.begin(), adapters.end(), adapter);
    if (found == adapters.end()) found = adapters.insert(adapters.end(), adapter);
    keys.push_back({static_cast<std::size_t>(found - adapters.begin()),
                    slices[i].tokens.size() > 1 || slices[i].context == 0, static_cast<int>(i)});
    if (slices[i].samples) sampling_slices_.push_back(static_cast<int>(i));
  }
  std::stable_sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) {
    return a.adapter != b.adapter ? a.adapter < b.adapter : a.prefill < b.prefill;
  });

  order_.clear();
  positions_.clear();
  decodes_.clear();
  prefills_.clear();
  kind_ = job.mode.kernel;
  lora_width_ = 0;
  std::vector<int> first_row(slices.size());
  int row = 0;
  for (const Key& key : keys) {
    const Sequence& slice = slices[static_cast<std::size_t>(key.slice)];
    const auto tokens = static_cast<int>(slice.tokens.size());
    order_.push_back({key.slice, row});
    first_row[static_cast<std::size_t>(key.slice)] = row;
    for (int i = 0; i < tokens; ++i) positions_.push_back(slice.context + i);
    if (const CpuAdapter* adapter = adapters[key.adapter]) {
      // One prefill is one SGMV segment whatever the plan's kernel is for decodes.
      const bool alone = key.prefill && !kernels::traits(kind_).all_pairs;
      std::vector<Segment>& segments = alone ? prefills_ : decodes_;
      if (!segments.empty() && segments.back().adapter == adapter &&
          segments.back().row + segments.back().rows == row) {
        segments.back().rows += tokens;
      } else {
        segments.push_back({row, tokens, adapter});
      }
      lora_width_ = std::max(lora_width_, adapter->rank());
    }
    row += tokens;
  }
  rows_ = row;
  sampling_rows_.clear();
  for (const int slice : sampling_slices_) {
    const auto i = static_cast<std::size_t>(slice);
    sampling_rows_.push_back(first_row[i] + static_cast<int>(slices[i].tokens.size()) - 1);
  }
  sampled_rows_ = static_cast<int>(sampling_rows_.size());
  lora_ = lora_width_ > 0;
  if (lora_) prepare_lora();
}

void CpuDevice::Impl::list_hosted(const DeviceJob& job,
                                  std::span<const DeviceAdapter* const> adapters) {
  hosted_.clear();
  host_layers_ = 0;
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    const Sequence& sequence = job.sequences[i];
    if (sequence.lora != LoraSite::kHost || adapters[i] == nullptr) continue;
    const bool known = std::any_of(hosted_.begin(), hosted_.end(),
                                   [&](const Hosted& h) { return h.id == sequence.adapter; });
    if (!known) hosted_.push_back({sequence.adapter, static_cast<const CpuAdapter*>(adapters[i])});
  }
  may_take_over_ = !hosted_.empty() && job.mode.take_over != TakeOver::kNever;
}

// Between layers, while all other members wait. An adapter comes to this device whole, so groups of
// its layers (TakeOver::kLayers) are there together.
void CpuDevice::Impl::take_over(int layer) {
  const std::size_t before = hosted_.size();
  std::erase_if(hosted_, [this](const Hosted& hosted) {
    const auto* const here = static_cast<const CpuAdapter*>((*arrived_)(hosted.id));
    if (here == nullptr) return false;
    for (std::vector<Segment>* segments : {&decodes_, &prefills_, &at_workers_}) {
      for (Segment& segment : *segments) {
        if (segment.adapter == hosted.adapter) segment.adapter = here;
      }
    }
    return true;
  });
  may_take_over_ = !hosted_.empty();
  if (round_open_ && hosted_.size() != before) reopen_round(layer);
}

void CpuDevice::Impl::prepare_lora() {
  t_stride_ = kernels::shrink_stride(lora_width_);
  t_floats_ = static_cast<std::size_t>(rows_) * static_cast<std::size_t>(t_stride_);
  if (t_.size() < 3 * t_floats_ * sizeof(float)) {
    t_ = Buffer(3 * t_floats_ * sizeof(float), "LoRA activations");
  }
  if (kernels::traits(kind_).all_pairs && !decodes_.empty()) {
    for (Buffer& scratch : scratch_) {
      if (scratch.size() < t_floats_ * sizeof(float)) {
        scratch = Buffer(t_floats_ * sizeof(float), "LoRA scratch memory");
      }
    }
  }
}

}  // namespace servelab
