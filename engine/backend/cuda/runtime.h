// The CUDA runtime's objects with owners. Every error becomes a SpecError that names what was being
// done: a machine that fails is not an invariant of ours.
#ifndef SERVELAB_BACKEND_CUDA_RUNTIME_H_
#define SERVELAB_BACKEND_CUDA_RUNTIME_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/backend/device/local_device.h"

namespace servelab::cuda {

// Throws when `error` is one.
void check(cudaError_t error, const char* doing);

class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  void synchronize() const;

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  enum class Timing { kOff, kOn };
  explicit Event(Timing timing = Timing::kOff);
  ~Event();
  Event(Event&& other) noexcept : event_(other.event_) { other.event_ = nullptr; }
  Event& operator=(Event&&) = delete;

  void record(cudaStream_t stream);
  void hold(cudaStream_t stream) const;  // later work of `stream` waits for the record
  void synchronize() const;
  bool reached() const;
  TimeNs since(const Event& begin) const;  // both with timing, both reached

 private:
  cudaEvent_t event_ = nullptr;
};

// One allocation of device memory, cut from its beginning.
class Arena {
 public:
  static constexpr std::size_t kAlignment = 256;
  static constexpr std::size_t rounded(std::size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  explicit Arena(std::size_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // `bytes` rounded up to kAlignment. The plan's sum is the arena's size, so there is room.
  std::byte* take(std::size_t bytes);
  template <class T>
  T* take_array(std::size_t count) {
    return reinterpret_cast<T*>(take(count * sizeof(T)));
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t used_ = 0;
};

// Pinned host memory in whole pages. Making it takes milliseconds, so what is given back serves the
// next taker who wants at most a fifth less. Any thread; a taker may outlive the pool.
class PinnedPool {
 public:
  PinnedPool();
  HostMemory take(std::size_t bytes);

 private:
  struct Shelf {
    ~Shelf();
    std::mutex mutex;
    std::map<std::size_t, std::vector<std::byte*>> free;  // by size; none is empty
  };
  std::shared_ptr<Shelf> shelf_;
};

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_RUNTIME_H_
