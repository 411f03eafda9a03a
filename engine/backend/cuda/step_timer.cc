#include "engine/backend/cuda/step_timer.h"

namespace servelab::cuda {

Event& StepTimer::next() {
  if (used_ == events_->size()) events_->push_back(stream_->make_timing_event());
  return (*events_)[used_++];
}

void StepTimer::begin(const StepStream& stream, bool parts) {
  stream_ = &stream;
  events_ = &events_of_[stream.place()];
  parts_ = parts;
  used_ = 0;
  laps_.clear();
  next().record(stream_->get());
}

void StepTimer::lap(Part part) {
  if (!parts_) return;
  if (!laps_.empty() && laps_.back() == part) {  // goes on: the same event, later
    (*events_)[used_ - 1].record(stream_->get());
    return;
  }
  laps_.push_back(part);
  next().record(stream_->get());
}

void StepTimer::end() {
  laps_.push_back(Part::kDense);
  next().record(stream_->get());
}

StepParts StepTimer::read() const {
  StepParts parts;
  for (std::size_t i = 0; i < laps_.size(); ++i) {
    const TimeNs time = (*events_)[i + 1].since((*events_)[i]);
    parts.total += time;
    switch (laps_[i]) {
      case Part::kDense:
        parts.dense += time;
        break;
      case Part::kAttention:
        parts.attention += time;
        break;
      case Part::kLora:
        parts.lora += time;
        break;
    }
  }
  return parts;
}

}  // namespace servelab::cuda
