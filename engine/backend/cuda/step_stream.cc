#include "engine/backend/cuda/step_stream.h"

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

std::uint64_t StepStream::place() const {
  if (grant_ == nullptr) return 0;
  return static_cast<std::uint64_t>(grant_->begin()) << 32 |
         static_cast<std::uint64_t>(grant_->count());
}

}  // namespace servelab::cuda
