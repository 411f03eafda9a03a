// When a step's parts happened on the device, by events between them; nothing waits for them
// before the step's end.
#ifndef SERVELAB_BACKEND_CUDA_STEP_TIMER_H_
#define SERVELAB_BACKEND_CUDA_STEP_TIMER_H_

#include <map>
#include <vector>

#include "engine/backend/cuda/step_stream.h"

namespace servelab::cuda {

class StepTimer {
 public:
  enum class Part { kDense, kAttention, kLora };

  // With `parts` each lap is an event, which costs a little time between kernels.
  void begin(const StepStream& stream, bool parts);
  void lap(Part part);  // what was enqueued since the last lap belongs to it
  void end();
  // After the stream has come to its end. Without parts all of the time is `dense`.
  StepParts read() const;

 private:
  Event& next();
  const StepStream* stream_ = nullptr;
  bool parts_ = false;
  std::size_t used_ = 0;
  // Reused. An event belongs to the SMs whose stream it is recorded on (StepStream::place).
  std::map<std::uint64_t, std::vector<Event>> events_of_;
  std::vector<Event>* events_ = nullptr;  // of this step
  std::vector<Part> laps_;                // between events i and i + 1
};

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_STEP_TIMER_H_
