// What a worker holds, and rank 0's commands carried out on it, one connection's at a time.
#ifndef SERVELAB_BACKEND_RANKS_RANK_DEVICE_H_
#define SERVELAB_BACKEND_RANKS_RANK_DEVICE_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/backend/ranks/worker.h"

namespace servelab::ranks {

class RankDevice {
 public:
  RankDevice(const WorkerDevice* worker, std::chrono::milliseconds patience)
      : worker_(worker), patience_(patience) {}

  // Carries a command out and answers on `connection`, an adapter's content being read from there.
  // Throws GroupError where the command cannot be meant for this rank; other failures are answered.
  void serve_step(const Frame& frame, Connection* connection);
  void serve_load(const Frame& frame, Connection* connection);

 private:
  void close();
  StepReply run(const DeviceJob& job);
  void hold(const LoadRequest& request, Connection* connection);
  void load(const LoadRequest& request, Connection* connection);
  void evict(AdapterId adapter);
  std::shared_ptr<const LoraWeights> receive(const LoadRequest& request,
                                             Connection* connection) const;
  Device& opened() const;

  const WorkerDevice* const worker_;
  const std::chrono::milliseconds patience_;
  ModelConfig part_;
  std::unique_ptr<Device> device_;

  std::mutex mutex_;
  std::unordered_map<AdapterId, std::shared_ptr<const LoraWeights>> held_;  // guarded
  std::unordered_map<AdapterId, std::string> names_;  // of those on the device; guarded
  AdapterState state_;                                // guarded
};

}  // namespace servelab::ranks

#endif  // SERVELAB_BACKEND_RANKS_RANK_DEVICE_H_
