// One replica's device: an executor, the thread that leads it, and the thread that loads adapters.
#ifndef SERVELAB_BACKEND_DEVICE_DEVICE_REPLICA_H_
#define SERVELAB_BACKEND_DEVICE_DEVICE_REPLICA_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/backend/device/real_backend.h"

namespace servelab {

// A step, copied from StepWork so that it stands on its own.
struct DeviceJob {
  struct Sequence {
    RequestId request{};
    std::vector<std::int32_t>* history = nullptr;  // prompt and output so far; grows by a token
    std::int32_t context = 0;
    std::int32_t tokens = 0;
    std::size_t first_block = 0;
    std::size_t block_count = 0;
    AdapterId adapter = kBaseModel;
    bool on_host = false;  // the host computes its LoRA
    bool samples = false;
  };
  std::uint32_t slot = 0;
  TimeNs submitted = 0;  // steady clock
  StepMode mode;
  AdapterId unmerge = kBaseModel;
  AdapterId merge = kBaseModel;
  std::vector<Sequence> sequences;
  std::vector<BlockIndex> blocks;
  std::vector<AdapterId> adapters;
  std::vector<AdapterId> host_adapters;
  std::vector<KvMove> moves;
  std::vector<RequestId> dropped;  // whose host copies of KV can go
};

class DeviceReplica {
 public:
  struct Settings {
    bool adapters_as_models = false;  // each is held folded into a copy of the layers
    int adapter_width = 0;            // ranks that adapters are padded to; 0: their own
    bool measure_parts = false;
    SamplingOptions sampling;
  };
  // `count` adapters exist. Where they are held as models, adapter i is the run's model i.
  DeviceReplica(ReplicaId id, RealTimeline* timeline, AdapterSource* adapters, std::size_t count,
                std::unique_ptr<Executor> executor, const Settings& settings);
  ~DeviceReplica();
  DeviceReplica(const DeviceReplica&) = delete;
  DeviceReplica& operator=(const DeviceReplica&) = delete;

  // All from the scheduling thread. One job at a time.
  void begin_load(AdapterId adapter);
  void load_now(AdapterId adapter);
  void evict(AdapterId adapter);
  void submit(DeviceJob job);
  const StepTiming& timing() const { return timing_; }  // of the job whose end was delivered
  const Executor& executor() const { return *executor_; }

 private:
  void lead();
  void serve_loads();
  void carry_out(DeviceJob* job);
  std::shared_ptr<const DeviceAdapter> bring(AdapterId adapter, const LoraWeights& weights);
  TimeNs wait_for_adapters(const DeviceJob& job);
  void move_kv(const DeviceJob& job);
  void switch_weights(const DeviceJob& job);
  std::shared_ptr<const DeviceAdapter> adapter(AdapterId id);
  const DeviceAdapter* host_adapter(AdapterId id);
  void drop_host_adapters(const DeviceJob& job);

  const ReplicaId id_;
  RealTimeline* const timeline_;
  AdapterSource* const source_;
  const std::unique_ptr<Executor> executor_;
  const Settings settings_;

  StepTiming timing_;
  std::unordered_map<RequestId, HostMemory> host_kv_;  // device thread only
  std::vector<HostMemory> spent_;                      // still copied from, until the step ends
  // Of the latest step, device thread only.
  std::unordered_map<AdapterId, std::unique_ptr<const DeviceAdapter>> host_adapters_;
  std::vector<std::int32_t> sampled_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<const DeviceAdapter>> resident_;  // by adapter; guarded
  std::deque<AdapterId> loads_;                                 // guarded
  std::optional<DeviceJob> job_;                                // guarded
  bool stop_ = false;                                           // guarded
  std::thread device_;
  std::thread loader_;
};

}  // namespace servelab

#endif  // SERVELAB_BACKEND_DEVICE_DEVICE_REPLICA_H_
