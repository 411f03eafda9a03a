#include "engine/backend/cuda/kv_store.h"

#include <algorithm>

#include "engine/core/check.h"
#include "kernels/cuda/blocks.h"

namespace servelab::cuda {
namespace {

constexpr std::size_t kMovesPerBlock = 2;  // out and in again within a step

kernels::KvCache shape_of(const ModelConfig& model, const DevicePlan& device) {
  kernels::KvCache shape;
  shape.type = device.type;
  shape.kv_heads = model.kv_heads;
  shape.head_dim = model.head_dim;
  shape.block_tokens = device.limits.block_tokens;
  return shape;
}

}  // namespace

KvStore::KvStore(const ModelConfig& model, const DevicePlan& device)
    : layers_(model.layers),
      kv_blocks_(device.limits.kv_blocks),
      block_tokens_(device.limits.block_tokens),
      shape_(shape_of(model, device)),
      moved_(static_cast<std::size_t>(model.layers)) {}

std::size_t KvStore::block_bytes() const {
  return static_cast<std::size_t>(shape_.kv_heads) * static_cast<std::size_t>(shape_.head_dim) *
         static_cast<std::size_t>(block_tokens_) * kernels::bytes_of(shape_.type);
}

void KvStore::plan(MemoryPlan* plan) const {
  const auto arrays = 2 * static_cast<std::size_t>(layers_);
  const auto blocks = static_cast<std::size_t>(kv_blocks_);
  plan->add("KV cache", arrays * Arena::rounded(blocks * block_bytes()),
            "memory_bytes in the hardware profile");
  plan->add("step input",
            Arena::rounded(arrays * sizeof(void*)) +
                Arena::rounded(kMovesPerBlock * blocks * sizeof(std::int32_t)),
            "engine.max_batch");
}

void KvStore::allocate(Arena* arena, PinnedPool* pinned) {
  const auto blocks = static_cast<std::size_t>(kv_blocks_);
  std::vector<void*> arrays;
  for (int layer = 0; layer < layers_; ++layer) {
    kernels::KvCache& cache = caches_.emplace_back(shape_);
    for (void** const side : {&cache.keys, &cache.values}) {
      *side = arena->take(blocks * block_bytes());
      arrays.push_back(*side);
      // What was never written may be read under a mask, where a NaN would not stay out.
      check(cudaMemsetAsync(*side, 0, blocks * block_bytes(), stream_.get()),
            "clearing the KV cache");
    }
  }
  arrays_ = arena->take_array<void*>(arrays.size());
  check(cudaMemcpyAsync(arrays_, arrays.data(), arrays.size() * sizeof(void*),
                        cudaMemcpyHostToDevice, stream_.get()),
        "copying the cache's table");
  index_ = arena->take_array<std::int32_t>(kMovesPerBlock * blocks);
  host_index_ = pinned->take(kMovesPerBlock * blocks * sizeof(std::int32_t));
  stream_.synchronize();
}

std::size_t KvStore::context_bytes(int tokens) const {
  return 2 * static_cast<std::size_t>(layers_) * static_cast<std::size_t>(blocks_of(tokens)) *
         block_bytes();
}

const std::int32_t* KvStore::send(std::span<const BlockIndex> blocks, int count) {
  const auto size = static_cast<std::size_t>(count);
  SL_CHECK(size <= blocks.size(), "a context has its blocks");
  if (next_index_ + size > kMovesPerBlock * static_cast<std::size_t>(kv_blocks_)) finish();
  auto* const host = reinterpret_cast<std::int32_t*>(host_index_.get()) + next_index_;
  std::int32_t* const device = index_ + next_index_;
  next_index_ += size;
  std::copy_n(blocks.begin(), size, host);
  check(cudaMemcpyAsync(device, host, size * sizeof(std::int32_t), cudaMemcpyHostToDevice,
                        stream_.get()),
        "copying block numbers");
  return device;
}

void KvStore::copy_out(std::span<const BlockIndex> blocks, int tokens, std::byte* host) {
  const int count = blocks_of(tokens);
  const kernels::cuda::BlockPool pool{arrays_, 2 * layers_,
                                      static_cast<std::int64_t>(block_bytes())};
  const std::int32_t* const index = send(blocks, count);
  check(kernels::cuda::gather_blocks(pool, index, count, host, stream_.get()),
        "copying KV blocks to the host");
  for (int layer = 0; layer < layers_; ++layer) record(layer);
}

void KvStore::copy_in(std::span<const BlockIndex> blocks, int tokens, const std::byte* host) {
  const int count = blocks_of(tokens);
  const std::int32_t* const index = send(blocks, count);
  const std::size_t layer_bytes = 2 * static_cast<std::size_t>(count) * block_bytes();
  for (int layer = 0; layer < layers_; ++layer) {
    const kernels::cuda::BlockPool pool{arrays_ + 2 * layer, 2,
                                        static_cast<std::int64_t>(block_bytes())};
    check(kernels::cuda::scatter_blocks(pool, index, count,
                                        host + static_cast<std::size_t>(layer) * layer_bytes,
                                        stream_.get()),
          "copying KV blocks to the device");
    record(layer);
  }
}

void KvStore::hold(cudaStream_t stream, int layer) const {
  moved_[static_cast<std::size_t>(layer)].hold(stream);
}

void KvStore::finish() {
  stream_.synchronize();
  settled();
}

}  // namespace servelab::cuda
