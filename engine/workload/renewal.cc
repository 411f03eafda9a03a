#include "engine/workload/renewal.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "engine/core/check.h"

namespace servelab {
namespace {

TimeNs stamp(double at_s) { return at_s < kLatestSeconds ? from_seconds(at_s) : kNever; }

}  // namespace

TimeNs SteadyProcess::next() {
  if (rate_per_s_ <= 0) return kNever;
  at_s_ += gaps_.draw(&rng_) / rate_per_s_;
  return stamp(at_s_);
}

BinnedProcess::BinnedProcess(RngStream rng, GapSampler gaps, std::vector<double> rates_per_s,
                             double bin_s, GapsOfBin gaps_of_bin)
    : rng_(rng),
      gaps_(gaps),
      rates_per_s_(std::move(rates_per_s)),
      bin_s_(bin_s),
      gaps_of_bin_(std::move(gaps_of_bin)) {
  for (const double rate : rates_per_s_) silent_ = silent_ && rate <= 0;
}

TimeNs BinnedProcess::next() {
  if (silent_) return kNever;
  const std::size_t bins = rates_per_s_.size();
  double need = gaps_of_bin_ ? gaps_of_bin_(bin_ % bins).draw(&rng_) : gaps_.draw(&rng_);
  while (at_s_ < kLatestSeconds) {
    const double rate = rates_per_s_[bin_ % bins];
    const double bin_end_s = static_cast<double>(bin_ + 1) * bin_s_;
    const double available = (bin_end_s - at_s_) * rate;
    if (need <= available && rate > 0) {
      at_s_ += need / rate;
      return stamp(at_s_);
    }
    need -= available;
    at_s_ = bin_end_s;
    ++bin_;
  }
  return kNever;
}

SwitchingProcess::SwitchingProcess(RngStream gaps_rng, RngStream switch_rng,
                                   const ArrivalSettings& settings, double rate_per_s)
    : gaps_rng_(gaps_rng),
      switch_rng_(switch_rng),
      log_normal_(GapKind::kLogNormal, settings.cv),
      base_rate_per_s_(rate_per_s),
      rate_per_s_(rate_per_s),
      update_s_(settings.update_s),
      factor_(settings.factor),
      max_factor_(settings.max_factor),
      next_update_s_(settings.update_s) {
  is_poisson_ = switch_rng_.below(2) == 0;
}

void SwitchingProcess::update() {
  is_poisson_ = switch_rng_.below(2) == 0;
  rate_per_s_ *= switch_rng_.below(2) == 0 ? factor_ : 1 / factor_;
  rate_per_s_ =
      std::clamp(rate_per_s_, base_rate_per_s_ / max_factor_, base_rate_per_s_ * max_factor_);
}

TimeNs SwitchingProcess::next() {
  if (base_rate_per_s_ <= 0) return kNever;
  while (at_s_ < kLatestSeconds) {
    const double gap_s = (is_poisson_ ? poisson_ : log_normal_).draw(&gaps_rng_) / rate_per_s_;
    if (at_s_ + gap_s < next_update_s_) {
      at_s_ += gap_s;
      return stamp(at_s_);
    }
    at_s_ = next_update_s_;  // the new process starts afresh
    next_update_s_ += update_s_;
    update();
  }
  return kNever;
}

std::vector<Arrival> merge_processes(std::vector<ProcessOfItem>* processes,
                                     std::size_t max_requests, TimeNs end) {
  using Entry = std::pair<TimeNs, std::size_t>;  // equal stamps: lower position first
  std::vector<Entry> first;
  for (std::size_t i = 0; i < processes->size(); ++i) {
    const TimeNs at = (*processes)[i].process->next();
    if (at < end) first.emplace_back(at, i);
  }
  std::vector<Arrival> arrivals;
  if (processes->size() == 1) {
    const ProcessOfItem& one = processes->front();
    for (TimeNs at = first.empty() ? end : first.front().first;
         at < end && arrivals.size() < max_requests;) {
      arrivals.push_back({at, one.item, 0});
      const TimeNs next = one.process->next();
      SL_CHECK(next >= at, "a process went back in time");
      at = next;
    }
    return arrivals;
  }
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> heap(std::greater<>(),
                                                                      std::move(first));
  while (!heap.empty() && arrivals.size() < max_requests) {
    const auto [at, i] = heap.top();
    heap.pop();
    arrivals.push_back({at, (*processes)[i].item, 0});
    const TimeNs next = (*processes)[i].process->next();
    SL_CHECK(next >= at, "a process went back in time");
    if (next < end) heap.emplace(next, i);
  }
  return arrivals;
}

}  // namespace servelab
