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
  RankDevice(const WorkerDevice* device, std::chrono::milliseconds patience)
      : device_(device), patience_(patience) {}

  // Carries a command out and answers on `connection`, an adapter's content being read from there.
  // Throws GroupError where the command cannot be meant for this rank; other failures are answered.
  void serve_step(const Frame& frame, Connection* connection);
  void serve_load(const Frame& frame, Connection* connection);

 private:
  struct Adapter {
    std::string name;
    std::uint64_t digest = 0;
    std::shared_ptr<const LoraWeights> weights;  // until it has arrived
    std::unique_ptr<DeviceAdapter> on_device;
  };

  void open(const Frame& frame, WireWriter* reply);
  void close();
  void run(const Frame& frame, WireWriter* reply);
  void merge(const Frame& frame);
  void copy(const Frame& frame, bool out);
  void hold(const PackRequest& request, Connection* connection);
  void pack(const PackRequest& request, Connection* connection, WireWriter* reply);
  std::shared_ptr<const LoraWeights> weights_of(const PackRequest& request, Connection* connection);
  void put_on_host(const PackRequest& request, Connection* connection);
  void wait(std::uint32_t handle);
  void drop(std::uint32_t handle, bool on_host);
  const DeviceAdapter* find(const BatchAdapter& place);
  Executor& executor() const;

  const WorkerDevice* const device_;
  const std::chrono::milliseconds patience_;
  OpenRank opened_;
  ModelConfig part_;
  std::unique_ptr<Executor> executor_;
  std::unordered_map<std::uint64_t, HostMemory> copies_;  // of contexts; steps only

  std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::shared_ptr<const LoraWeights>>
      held_;                                             // by digest; guarded
  std::unordered_map<std::uint32_t, Adapter> adapters_;  // guarded
  AdapterState state_;                                   // guarded
};

}  // namespace servelab::ranks

#endif  // SERVELAB_BACKEND_RANKS_RANK_DEVICE_H_
