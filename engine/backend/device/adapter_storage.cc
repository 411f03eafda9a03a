#include "engine/backend/device/adapter_storage.h"

#include <algorithm>
#include <utility>

#include "engine/core/units.h"

namespace servelab {
namespace {

constexpr std::size_t kChunkBytes = 64 * static_cast<std::size_t>(kMiB);
constexpr std::size_t kLine = 64;

std::size_t lines(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

}  // namespace

AdapterStorage::AdapterStorage(std::shared_ptr<SharedMemory> shared) : shared_(std::move(shared)) {}

void AdapterStorage::reserve(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > 0) add_chunk(bytes);
}

void AdapterStorage::add_chunk(std::size_t bytes) {
  if (shared_ == nullptr) {
    next_ = chunks_.emplace_back(bytes, "adapters").data();
  } else {
    next_ = shared_->data() + shared_->size();
    shared_->grow(shared_->size() + bytes);
  }
  left_ = bytes;
}

std::byte* AdapterStorage::take(std::size_t bytes) {
  const std::size_t size = lines(bytes);
  const std::lock_guard lock(mutex_);
  std::vector<std::byte*>& free = free_[size];
  if (!free.empty()) {
    std::byte* const data = free.back();
    free.pop_back();
    return data;
  }
  if (left_ < size) add_chunk(std::max(kChunkBytes, size));
  left_ -= size;
  return std::exchange(next_, next_ + size);
}

void AdapterStorage::give(std::byte* data, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  free_[lines(bytes)].push_back(data);
}

}  // namespace servelab
