// A rank in another process, seen from rank 0: an executor that passes every call on to the
// process's worker (worker.h) and gives back what that answers. Where the worker's process has
// ended or no longer agrees, the group has failed (RankGroup::fail), and calls throw GroupError.
#ifndef SERVELAB_BACKEND_RANKS_REMOTE_EXECUTOR_H_
#define SERVELAB_BACKEND_RANKS_REMOTE_EXECUTOR_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/backend/device/executor.h"
#include "engine/backend/ranks/rank_group.h"

namespace servelab::ranks {

// What rank 0 knows of a worker's adapters: their state after each change, until the worker has
// said that it had the same.
class StateLog {
 public:
  void add(std::uint32_t handle, std::uint64_t digest);
  void take_back(const AdapterState& before);  // the latest one: it did not happen
  AdapterState state();
  // Throws GroupError where the worker's state after as many changes was another one.
  void compare(const AdapterState& theirs);

 private:
  std::mutex mutex_;
  AdapterState state_;
  std::deque<std::uint64_t> digests_;  // after each change that was not compared yet; guarded
};

// The state after one more change. Dropping an adapter changes it by digest 0.
AdapterState next_state(const AdapterState& state, std::uint32_t handle, std::uint64_t digest);

class RemoteExecutor final : public Executor {
 public:
  // Opens the model at its worker: kPrepare has to have been answered. Both outlive it.
  RemoteExecutor(RankGroup* group, Peer* peer, const ModelConfig& model, const OpenRank& open);
  ~RemoteExecutor() override;

  const ModelConfig& model() const override { return model_; }
  const ExecutorLimits& limits() const override { return limits_; }
  // Rank 0's own device is asked, which is of the same kind.
  const char* unsupported(const StepPlan& /*plan*/) const override { return nullptr; }
  void enter_thread() const override {}

  std::unique_ptr<DeviceAdapter> pack_adapter(const LoraWeights& weights, int width) override;
  std::unique_ptr<DeviceAdapter> pack_whole_model(const LoraWeights& weights) override;
  // Over the steps' connection, since a step waits for it and not for a load in progress.
  std::unique_ptr<DeviceAdapter> host_adapter(std::shared_ptr<const LoraWeights> weights) override;
  // The content goes over now and stays there; other adapters' go over with each load, since they
  // are those that rank 0 reads from disk each time.
  void hold_on_host(std::shared_ptr<const LoraWeights> weights, int width) override;

  StepParts run(std::span<const SequenceSlice> slices, const RunMode& mode,
                const SamplingOptions& sampling, std::vector<std::int32_t>* sampled) override;
  std::span<const float> logits() override;

  void merge(const DeviceAdapter& adapter) override;
  void unmerge() override;

  Bytes kv_bytes_per_token() const override { return facts_.kv_bytes_per_token; }
  // Copies of contexts stay in the worker's host memory: here, each has a number.
  std::size_t context_bytes(int tokens) const override;
  HostMemory host_memory(std::size_t bytes) override;
  void copy_out(std::span<const BlockIndex> blocks, int tokens, std::byte* host) override;
  void copy_in(std::span<const BlockIndex> blocks, int tokens, const std::byte* host) override;
  void finish_copies() override;

  // For RemoteAdapter: the worker may forget it. Does not throw.
  void drop(std::uint32_t handle, bool on_host) noexcept;
  void wait_for(std::uint32_t handle) const;

 private:
  std::vector<std::byte> call(Purpose purpose, Message kind, const WireWriter& message,
                              Deadline deadline,
                              const std::function<void(Connection*)>& content = {}) const;
  std::vector<std::byte> step(Message kind, const WireWriter& message) const;
  PackRequest request_for(const LoraWeights& weights);
  std::unique_ptr<DeviceAdapter> pack(const LoraWeights& weights, int width, bool whole_model);
  void send_copy(Message kind, std::span<const BlockIndex> blocks, int tokens,
                 const std::byte* host);

  RankGroup* const group_;
  Peer* const peer_;
  const ModelConfig model_;
  const ExecutorLimits limits_;
  RankFacts facts_;
  std::vector<float> logits_;
  StateLog log_;

  std::mutex changing_;  // one change of the worker's adapters at a time
  std::mutex mutex_;
  std::uint32_t next_handle_ = 1;                                  // guarded
  std::uint64_t next_copy_ = 1;                                    // guarded
  std::unordered_map<const LoraWeights*, std::uint64_t> digests_;  // of those held; guarded
};

}  // namespace servelab::ranks

#endif  // SERVELAB_BACKEND_RANKS_REMOTE_EXECUTOR_H_
