// The paged KV cache on the device, and copies of whole contexts to and from pinned host memory on
// a stream of their own (swapping).
#ifndef SERVELAB_BACKEND_CUDA_KV_STORE_H_
#define SERVELAB_BACKEND_CUDA_KV_STORE_H_

#include <span>
#include <vector>

#include "engine/backend/cuda/memory_plan.h"
#include "engine/backend/cuda/runtime.h"
#include "engine/backend/device/accelerator.h"
#include "kernels/attention.h"

namespace servelab::cuda {

class KvStore {
 public:
  KvStore(const ModelConfig& model, const DevicePlan& device);
  void plan(MemoryPlan* plan) const;
  void allocate(Arena* arena, PinnedPool* pinned);

  const kernels::KvCache& cache(int layer) const {
    return caches_[static_cast<std::size_t>(layer)];
  }

  // Host memory of a context: whole blocks, [layer][keys, values][block][block_bytes].
  std::size_t context_bytes(int tokens) const;
  void copy_out(std::span<const BlockIndex> blocks, int tokens, std::byte* host);
  void copy_in(std::span<const BlockIndex> blocks, int tokens, const std::byte* host);

  bool copying() const { return next_index_ > 0; }
  // Later work of `stream` waits for what copies have to do with that layer; after all layers it
  // has waited for everything.
  void hold(cudaStream_t stream, int layer) const;
  // A stream that held all layers has come to its end: nothing is copied any more.
  void settled() { next_index_ = 0; }
  void finish();  // waits for all copies

 private:
  std::size_t block_bytes() const;  // of keys or values of one layer
  // The blocks of `tokens` tokens, sent to the device.
  const std::int32_t* send(std::span<const BlockIndex> blocks, int count);
  int blocks_of(int tokens) const { return (tokens + block_tokens_ - 1) / block_tokens_; }
  void record(int layer) { moved_[static_cast<std::size_t>(layer)].record(stream_.get()); }

  const int layers_;
  const std::int64_t kv_blocks_;
  const int block_tokens_;
  const kernels::KvCache shape_;  // without pointers
  std::vector<kernels::KvCache> caches_;
  void** arrays_ = nullptr;  // on the device: keys and values of each layer
  Stream stream_;
  std::vector<Event> moved_;  // by layer
  HostMemory host_index_;
  std::int32_t* index_ = nullptr;
  std::size_t next_index_ = 0;
};

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_KV_STORE_H_
