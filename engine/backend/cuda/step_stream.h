// The stream that a step's kernels go to: the device's own, or one that is confined to the step's
// share of the SMs.
#ifndef SERVELAB_BACKEND_CUDA_STEP_STREAM_H_
#define SERVELAB_BACKEND_CUDA_STEP_STREAM_H_

#include <cstdint>
#include <memory>

#include "engine/backend/cuda/runtime.h"
#include "engine/backend/cuda/sm_shares.h"

namespace servelab::cuda {

class StepStream {
 public:
  // `shares` null: steps have the whole device.
  StepStream(int multiprocessors, std::shared_ptr<SmShares> shares)
      : all_(multiprocessors), shares_(std::move(shares)) {}

  class Confined {
   public:
    explicit Confined(StepStream* stream) : stream_(stream) {}
    ~Confined() { stream_->grant_.reset(); }
    Confined(const Confined&) = delete;
    Confined& operator=(const Confined&) = delete;

   private:
    StepStream* stream_;
  };
  // While the result lives; both streams are idle when it begins and ends. 1 is the whole device,
  // beside whatever others do there.
  [[nodiscard]] Confined confine(double share);

  bool has_shares() const { return shares_ != nullptr; }
  cudaStream_t get() const { return grant_ == nullptr ? whole_.get() : grant_->stream(); }
  void synchronize() const;
  // With timing, to be recorded on get() alone.
  Event make_timing_event() const;
  int multiprocessors() const { return grant_ == nullptr ? all_ : grant_->sms(); }
  // Names the SMs: kernels that are recorded stay on theirs.
  std::uint64_t place() const;

 private:
  const int all_;
  const std::shared_ptr<SmShares> shares_;
  Stream whole_;
  std::unique_ptr<SmShares::Grant> grant_;
  int preferred_ = 0;  // where the latest grant lay, and its graphs were recorded
};

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_STEP_STREAM_H_
