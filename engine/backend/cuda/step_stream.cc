#include "engine/backend/cuda/step_stream.h"

#include <optional>
#include <utility>

#include "engine/core/check.h"

namespace servelab::cuda {

StepStream::Confined StepStream::confine(double share) {
  if (share != 1) {
    SL_CHECK(shares_ != nullptr, "a device that steps share was set up for it");
    grant_ = shares_->take(share, preferred_);
    preferred_ = grant_->begin();
  }
  return Confined(this);
}

void StepStream::synchronize() const {
  check(cudaStreamSynchronize(get()), "waiting for a step's stream");
}

Event StepStream::make_timing_event() const {
  if (grant_ == nullptr) return Event(Event::Timing::kOn);
  std::optional<Event> event;
  grant_->in_context([&] { event.emplace(Event::Timing::kOn); });
  return std::move(*event);
}

std::uint64_t StepStream::place() const {
  if (grant_ == nullptr) return 0;
  return static_cast<std::uint64_t>(grant_->begin()) << 32 |
         static_cast<std::uint64_t>(grant_->count());
}

}  // namespace servelab::cuda
