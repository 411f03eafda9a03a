// One replica's device, the thread that leads it, and the thread that loads adapters.
#ifndef SERVELAB_BACKEND_DEVICE_DEVICE_REPLICA_H_
#define SERVELAB_BACKEND_DEVICE_DEVICE_REPLICA_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/backend/device/real_backend.h"

namespace servelab {

class DeviceReplica {
 public:
  struct Settings {
    bool folds_adapters = false;  // each is held folded into a copy of the layers
    int adapter_width = 0;        // ranks that adapters are padded to; 0: their own
    bool by_layer = false;        // steps begin before all of an adapter has come
  };
  // `count` adapters exist. Where they are held folded, adapter i is the run's model i.
  DeviceReplica(ReplicaId id, RealTimeline* timeline, AdapterSource* adapters, std::size_t count,
                std::unique_ptr<Device> device, const Settings& settings);
  ~DeviceReplica();
  DeviceReplica(const DeviceReplica&) = delete;
  DeviceReplica& operator=(const DeviceReplica&) = delete;

  // All from the scheduling thread. One job at a time: the result is of the latest whose end was
  // delivered, with the event's slot.
  void begin_load(AdapterId adapter);
  void load_now(AdapterId adapter);
  void evict(AdapterId adapter);
  void submit(std::uint32_t slot, DeviceJob job);
  const DeviceResult& result() const { return result_; }
  const StepTiming& timing() const { return timing_; }
  const Device& device() const { return *device_; }

 private:
  struct Submitted {
    std::uint32_t slot = 0;
    TimeNs at = 0;  // steady clock
    DeviceJob job;
  };
  void stop();
  void lead();
  void serve_loads();
  void carry_out(const Submitted& submitted);
  TimeNs wait_for_adapters(const DeviceJob& job);
  Load load_of(AdapterId adapter) const;

  const ReplicaId id_;
  RealTimeline* const timeline_;
  AdapterSource* const source_;
  const std::unique_ptr<Device> device_;
  const Settings settings_;
  DeviceResult result_;
  StepTiming timing_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> usable_;      // by adapter: on the device, or on its way; guarded
  std::deque<AdapterId> loads_;   // guarded
  std::optional<Submitted> job_;  // guarded
  bool stop_ = false;             // guarded
  std::vector<std::thread> threads_;
};

}  // namespace servelab

#endif  // SERVELAB_BACKEND_DEVICE_DEVICE_REPLICA_H_
