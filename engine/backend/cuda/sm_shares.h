// Who runs on which of a device's SMs: steps of models that share it each get as many as their plan
// says, apart from each other's while there is room.
#ifndef SERVELAB_BACKEND_CUDA_SM_SHARES_H_
#define SERVELAB_BACKEND_CUDA_SM_SHARES_H_

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/backend/cuda/sm_groups.h"
#include "engine/backend/device/accelerator.h"

namespace servelab::cuda {

class SmShares final : public DevicePartition {
 public:
  explicit SmShares(std::unique_ptr<SmGroups> groups);

  // Groups [begin, begin + count), held until the grant is destroyed.
  class Grant {
   public:
    Grant(SmShares* from, int begin, int count, cudaStream_t stream)
        : from_(from), begin_(begin), count_(count), stream_(stream) {}
    ~Grant() { from_->give_back(*this); }
    Grant(const Grant&) = delete;
    Grant& operator=(const Grant&) = delete;

    int begin() const { return begin_; }
    int count() const { return count_; }
    int sms() const { return count_ * from_->groups_->sms_per_group(); }
    // Its own, whoever else is on these groups.
    cudaStream_t stream() const { return stream_; }
    // SmGroups::in_context of its groups.
    void in_context(const std::function<void()>& make) const {
      from_->groups_->in_context(begin_, count_, make);
    }

   private:
    SmShares* from_;
    int begin_;
    int count_;
    cudaStream_t stream_;
  };

  // The number of groups nearest to `share` of all SMs, at least one. Where they lie: where fewest
  // of their SMs are already granted; of such places `preferred`, else the first. Plans may ask
  // for more than there is (MuxServe lets steps overlap): then grants share SMs. Any thread.
  std::unique_ptr<Grant> take(double share, int preferred);

  int sms() const { return groups_->sms(); }

 private:
  void give_back(const Grant& grant);
  int load_of(int begin, int count) const;

  const std::unique_ptr<SmGroups> groups_;
  std::mutex mutex_;
  std::vector<int> grants_;  // by group; guarded
};

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_SM_SHARES_H_
