// A device of another process, seen from rank 0: it passes every call on to the process's worker
// (worker.h) and gives back what that answers. Where the worker's process has ended or no longer
// agrees, the group has failed (RankGroup::fail), and calls throw GroupError.
#ifndef SERVELAB_BACKEND_RANKS_REMOTE_DEVICE_H_
#define SERVELAB_BACKEND_RANKS_REMOTE_DEVICE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "engine/backend/device/device.h"
#include "engine/backend/ranks/rank_group.h"

namespace servelab::ranks {

// What rank 0 knows of a worker's adapters: their state after each change, until the worker has
// said that it had the same.
class StateLog {
 public:
  void add(AdapterId adapter, std::uint64_t digest);
  void take_back(const AdapterState& before);  // the latest one: it did not happen
  AdapterState state();
  // Throws GroupError where the worker's state after as many changes was another one.
  void compare(const AdapterState& theirs);

 private:
  std::mutex mutex_;
  AdapterState state_;
  std::deque<std::uint64_t> digests_;  // after each change that was not compared yet; guarded
};

// The state after one more change. Evicting an adapter changes it by digest 0.
AdapterState next_state(const AdapterState& state, AdapterId adapter, std::uint64_t digest);

class RemoteDevice final : public Device {
 public:
  // Opens the model at its worker: kPrepare has to have been answered. Both outlive it.
  RemoteDevice(RankGroup* group, Peer* peer, const ModelConfig& model, const OpenRank& open);
  ~RemoteDevice() override;

  // Rank 0's own device is asked, which is of the same kind.
  const char* unsupported(const StepPlan& /*plan*/) const override { return nullptr; }
  // The content goes over now and stays there; other adapters' go over with each load, since they
  // are those that rank 0 reads from disk each time.
  void hold(const Load& load, std::shared_ptr<const LoraWeights> weights) override;
  void load(const Load& load, std::shared_ptr<const LoraWeights> weights) override;
  void wait(AdapterId adapter) override;
  void evict(AdapterId adapter) override;
  void run(const DeviceJob& job, DeviceResult* result) override;

 private:
  std::vector<std::byte> call(Purpose purpose, Message kind, const WireWriter& message,
                              Deadline deadline,
                              const std::function<void(Connection*)>& content = {}) const;
  void send(Message kind, const LoadRequest& request, const LoraWeights& content) const;

  RankGroup* const group_;
  Peer* const peer_;
  StateLog log_;
  std::mutex changing_;  // one change of the worker's adapters at a time
  std::unordered_map<AdapterId, std::uint64_t> held_;  // their digests; before the first job
};

}  // namespace servelab::ranks

#endif  // SERVELAB_BACKEND_RANKS_REMOTE_DEVICE_H_
