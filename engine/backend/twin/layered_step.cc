#include "engine/backend/twin/layered_step.h"

#include <algorithm>
#include <limits>

#include "engine/serve/view.h"

namespace servelab {
namespace {

constexpr TimeNs kNotInThisStep = std::numeric_limits<TimeNs>::max();

// What is copied one layer after the other, all of them alike.
bool comes_by_layer(LoadPath path) {
  return path == LoadPath::kLayers || path == LoadPath::kPageable;
}

// When the first `pieces` of `all` have come.
TimeNs come_at(const LinkLoad& load, int pieces, int all) {
  return load.begin + (load.ready - load.begin) * pieces / all;
}

// The part of `whole` that falls on one layer; all of them add up to it.
TimeNs share(TimeNs whole, int layer, int layers) {
  return whole * (layer + 1) / layers - whole * layer / layers;
}

// Every load that is not done by `at` ends later.
void hold_up(TimeNs at, TimeNs by, std::vector<LinkLoad>* loads) {
  for (LinkLoad& load : *loads) {
    if (load.ready <= at) continue;
    load.ready += by;
    if (load.begin > at) load.begin += by;
  }
}

}  // namespace

void LayeredStep::look_up_adapters(const StepWork& work, LoadPath path) {
  const auto load_of = [this](AdapterId id) {
    return static_cast<std::size_t>(
        std::find_if(loads_->begin(), loads_->end(),
                     [id](const LinkLoad& load) { return load.what == load_subject(id); }) -
        loads_->begin());
  };
  awaited_.clear();
  for (const AdapterId id : work.adapters) {
    const std::size_t load = load_of(id);
    if (path == LoadPath::kLayers && load < loads_->size()) awaited_.push_back(load);
  }
  on_host_.clear();
  for (const AdapterId id : work.host_adapters) {
    OnHost entry{id, work.view->adapter(id).rank, load_of(id), false, false};
    if (entry.load == loads_->size()) {
      entry.here = work.view->adapters().residency(id) != Residency::kAbsent;
      entry.never = !entry.here;
    }
    if (work.mode.take_over == TakeOver::kNever) entry.never = true;
    on_host_.push_back(entry);
  }
  by_host_.assign(on_host_.size(), true);
}

TimeNs LayeredStep::take_over_at(const OnHost& adapter, TakeOver mode, LoadPath path,
                                 int layer) const {
  if (adapter.never) return kNotInThisStep;
  if (adapter.here) return 0;
  const LinkLoad& load = (*loads_)[adapter.load];
  if (mode == TakeOver::kLoaded || !comes_by_layer(path) || layers_ <= kTakeOverGroup) {
    return load.ready;
  }
  const int last = std::min((layer / kTakeOverGroup + 1) * kTakeOverGroup, layers_) - 1;
  const int before =
      last < kTakeOverGroup ? layers_ - kTakeOverGroup + last : last - kTakeOverGroup;
  return come_at(load, before + 1, layers_);
}

// The step's shape with what is still the host's on the host.
BatchShape LayeredStep::shape_of_layer(const StepWork& work) const {
  BatchShape shape = work.shape;
  shape.host_requests = shape.host_tokens = shape.host_rank_tokens = 0;
  shape.host_adapters = shape.host_rank_sum = shape.host_max_rank = 0;
  for (std::size_t i = 0; i < on_host_.size(); ++i) {
    const OnHost& entry = on_host_[i];
    for (const Slice& slice : work.slices) {
      const RequestView& r = work.view->request(slice.request);
      if (slice.lora != LoraSite::kHost || r.adapter() != entry.adapter) continue;
      if (by_host_[i]) {
        shape.add_host_rows(slice.tokens, entry.rank);
      } else {
        shape.add_lora_rows(slice.tokens, r.context(), entry.rank);
      }
    }
    if (by_host_[i]) {
      shape.add_host_adapter(entry.rank);
    } else if (std::find(work.adapters.begin(), work.adapters.end(), entry.adapter) ==
               work.adapters.end()) {
      shape.add_lora_adapter(entry.rank);
    }
  }
  return shape;
}

void LayeredStep::run(const StepWork& work, const CostModel& cost, LoadPath path, TimeNs start,
                      std::vector<LinkLoad>* loads, StepTiming* timing) {
  layers_ = cost.copy_pieces();
  loads_ = loads;
  look_up_adapters(work, path);
  const StepCost without = timing->cost;
  const TimeNs device = without.total() - without.host;
  TimeNs at = start + timing->swap + timing->switching + without.host;
  TimeNs on_device = 0;  // LoRA of rows that were the host's, in all layers
  HostLoraCost on_host;
  bool known = on_host_.empty();
  timing->host_layers = 0;
  for (int layer = 0; layer < layers_; ++layer) {
    TimeNs free = at;
    for (const std::size_t i : awaited_) {
      free = std::max(free, come_at((*loads)[i], layer + 1, layers_));
    }
    timing->load_wait += free - at;
    at = free;
    bool any = false;
    for (std::size_t i = 0; i < on_host_.size(); ++i) {
      const bool host = take_over_at(on_host_[i], work.mode.take_over, path, layer) > at;
      known = known && by_host_[i] == host;
      by_host_[i] = host;
      any = any || host;
    }
    if (!known) {
      const BatchShape shape = shape_of_layer(work);
      on_device = cost.step(shape, work.mode.exec, work.mode.kernel).lora - without.lora;
      on_host = any ? cost.host_lora(shape, work.mode.host_copy) : HostLoraCost{};
      known = true;
    }
    TimeNs lora = share(on_device + on_host.added, layer, layers_);
    if (any) {
      ++timing->host_layers;
      const TimeNs results = share(on_host.results, layer, layers_);
      if (std::any_of(loads->begin(), loads->end(),
                      [at](const LinkLoad& load) { return load.ready > at; })) {
        hold_up(at, results, loads);
        lora += results;
      }
    }
    timing->cost.lora += lora;
    at += share(device, layer, layers_) + lora;
  }
}

}  // namespace servelab
