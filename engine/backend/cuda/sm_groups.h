// A device's multiprocessors (SMs) in groups, and streams that are confined to some of them.
#ifndef SERVELAB_BACKEND_CUDA_SM_GROUPS_H_
#define SERVELAB_BACKEND_CUDA_SM_GROUPS_H_

#include <cuda_runtime_api.h>

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

  // Kernels of the stream run on groups [begin, begin + count) alone. The same stream at each call;
  // it is the groups'. One call at a time. Throws SpecError.
  virtual cudaStream_t stream(int begin, int count) = 0;
};

// Green contexts, in the smallest groups that the device can be split into. Throws SpecError where
// the driver or the device has none.
std::unique_ptr<SmGroups> make_sm_groups(int device);

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_SM_GROUPS_H_
