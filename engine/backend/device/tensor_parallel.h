// A replica on several devices: one per rank, each led by a thread of its own here, that do every
// job together (engine/model/shard.h). A rank is a device of this process or of another one
// (engine/backend/ranks); this class does not know which.
//
// All ranks see the same loads and evictions in the same order and run a step in the same form,
// eagerly or as a recorded graph: collectives in it ask for that.
#ifndef SERVELAB_BACKEND_DEVICE_TENSOR_PARALLEL_H_
#define SERVELAB_BACKEND_DEVICE_TENSOR_PARALLEL_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/backend/device/device.h"
#include "engine/backend/device/rank_team.h"
#include "engine/core/check.h"

namespace servelab {

// A rank cannot follow the others any more: none of them can go on.
class GroupError : public SpecError {
 public:
  using SpecError::SpecError;
};

// Makes the device of one rank, on the thread that leads it from then on.
using MakeRank = std::function<std::unique_ptr<Device>()>;
// A rank has failed while the others wait for it, on their devices too. Need not return.
using RankFailed = std::function<void(const std::string& why)>;

class TensorParallelDevice final : public Device {
 public:
  // Ranks made by these, all at once. `failed` may be null. Throws what the lowest of them threw.
  TensorParallelDevice(const ModelConfig& model, const DeviceLimits& limits,
                       const std::vector<MakeRank>& ranks, RankFailed failed);
  ~TensorParallelDevice() override;

  const char* unsupported(const StepPlan& plan) const override;
  void hold(const Load& load, std::shared_ptr<const LoraWeights> weights) override;
  void load(const Load& load, std::shared_ptr<const LoraWeights> weights) override;
  void wait(AdapterId adapter) override;
  void evict(AdapterId adapter) override;
  // The times are the first rank's; workers that were lost are all ranks'.
  void run(const DeviceJob& job, DeviceResult* result) override;

 private:
  using Parts = std::vector<std::shared_ptr<const LoraWeights>>;  // by rank
  Parts parts_of(const LoraWeights& weights) const;
  void take_back_evicted();

  const RankFailed failed_;
  RankTeam team_;
  std::vector<std::unique_ptr<Device>> ranks_;
  std::vector<DeviceResult> results_;          // by rank
  std::unordered_map<AdapterId, Parts> held_;  // before the first job

  std::mutex changing_;  // the adapters on the devices, one change at a time
  std::mutex mutex_;
  std::unordered_map<AdapterId, bool> arrived_;  // on all ranks, by those that are there; guarded
  // Given back when the next one comes, so that all ranks see both in the same order whichever
  // threads the two happen on.
  std::vector<AdapterId> evicted_;  // guarded
};

}  // namespace servelab

#endif  // SERVELAB_BACKEND_DEVICE_TENSOR_PARALLEL_H_
