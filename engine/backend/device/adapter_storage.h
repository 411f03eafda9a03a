// Memory for adapters on the device: cut from large chunks in huge pages, since an adapter is read
// once per step and a page walk every 4 KiB would cost as much as the reading. Given back memory
// serves the next adapter of the same size. Any thread.
#ifndef SERVELAB_BACKEND_DEVICE_ADAPTER_STORAGE_H_
#define SERVELAB_BACKEND_DEVICE_ADAPTER_STORAGE_H_

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/backend/device/buffer.h"
#include "engine/backend/device/shared_memory.h"

namespace servelab {

class AdapterStorage {
 public:
  AdapterStorage() = default;
  // From memory that other processes see: of them all, only this takes it.
  explicit AdapterStorage(std::shared_ptr<SharedMemory> shared);

  // Has `bytes` ready, so that loading an adapter does not wait for the system's pages.
  void reserve(std::size_t bytes);

  // 64-byte aligned. Throws SpecError when the system has no more.
  std::byte* take(std::size_t bytes);
  void give(std::byte* data, std::size_t bytes);

 private:
  void add_chunk(std::size_t bytes);  // mutex_ is held

  const std::shared_ptr<SharedMemory> shared_;
  std::mutex mutex_;
  std::vector<Buffer> chunks_;  // where it is not shared
  std::byte* next_ = nullptr;   // of the latest chunk, what has not been taken yet
  std::size_t left_ = 0;
  std::map<std::size_t, std::vector<std::byte*>> free_;  // by size
};

}  // namespace servelab

#endif  // SERVELAB_BACKEND_DEVICE_ADAPTER_STORAGE_H_
