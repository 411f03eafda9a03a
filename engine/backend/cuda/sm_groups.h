// A device's multiprocessors (SMs) in groups, and streams that are confined to some of them.
#ifndef SERVELAB_BACKEND_CUDA_SM_GROUPS_H_
#define SERVELAB_BACKEND_CUDA_SM_GROUPS_H_

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>

namespace servelab::cuda {

class SmGroups {
 public:
  virtual ~SmGroups() = default;

  virtual int groups() const = 0;
  virtual int sms_per_group() const = 0;
  // All of the device's: those beyond groups() * sms_per_group() are only used by streams that are
  // not confined.
  virtual int sms() const = 0;

  // Kernels of the stream run on groups [begin, begin + count) alone. It is its taker's until it is
  // given back, idle: two takers of the same groups do not wait for each other. One call at a time.
  // Throws SpecError.
  virtual cudaStream_t take_stream(int begin, int count) = 0;
  virtual void give_back(int begin, int count, cudaStream_t stream) = 0;
  // Runs `make` with the groups' context current: events that are to be recorded on their streams
  // are made so. Any thread, for groups whose stream it has.
  virtual void in_context(int begin, int count, const std::function<void()>& make) = 0;
};

// Green contexts, in the smallest groups that the device can be split into. Throws SpecError where
// the driver or the device has none.
std::unique_ptr<SmGroups> make_sm_groups(int device);

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_SM_GROUPS_H_
