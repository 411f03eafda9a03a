#include "engine/backend/cuda/runtime.h"

#include <algorithm>
#include <string>

#include "engine/core/check.h"

namespace servelab::cuda {
namespace {

constexpr std::size_t kPage = 4096;

}  // namespace

void check(cudaError_t error, const char* doing) {
  if (error == cudaSuccess) return;
  throw SpecError(std::string("the CUDA engine: ") + doing + ": " + cudaGetErrorString(error));
}

Stream::Stream() {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
}
Stream::~Stream() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}
void Stream::synchronize() const { check(cudaStreamSynchronize(stream_), "waiting for a stream"); }

Event::Event(Timing timing) {
  const unsigned flags = timing == Timing::kOn ? cudaEventDefault : cudaEventDisableTiming;
  check(cudaEventCreateWithFlags(&event_, flags), "making an event");
}
Event::~Event() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}
void Event::record(cudaStream_t stream) {
  check(cudaEventRecord(event_, stream), "recording an event");
}
void Event::hold(cudaStream_t stream) const {
  check(cudaStreamWaitEvent(stream, event_, 0), "waiting for an event");
}
void Event::synchronize() const { check(cudaEventSynchronize(event_), "waiting for an event"); }
bool Event::reached() const {
  const cudaError_t state = cudaEventQuery(event_);
  if (state == cudaErrorNotReady) return false;
  check(state, "asking for an event");
  return true;
}
TimeNs Event::since(const Event& begin) const {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin.event_, event_), "reading an event's time");
  return static_cast<TimeNs>(static_cast<double>(milliseconds) * 1e6);
}

Arena::Arena(std::size_t bytes) : size_(rounded(bytes)) {
  void* data = nullptr;
  check(cudaMalloc(&data, size_), "allocating the planned device memory");
  data_ = static_cast<std::byte*>(data);
}
Arena::~Arena() {
  if (data_ != nullptr) cudaFree(data_);
}
std::byte* Arena::take(std::size_t bytes) {
  const std::size_t size = rounded(bytes);
  SL_CHECK(size <= size_ - used_, "the arena holds what was planned");
  std::byte* const data = data_ + used_;
  used_ += size;
  return data;
}

PinnedPool::PinnedPool() : shelf_(std::make_shared<Shelf>()) {}

PinnedPool::Shelf::~Shelf() {
  for (const auto& [size, list] : free) {
    for (std::byte* data : list) cudaFreeHost(data);
  }
}

HostMemory PinnedPool::take(std::size_t bytes) {
  std::size_t size = std::max((bytes + kPage - 1) / kPage, std::size_t{1}) * kPage;
  std::byte* data = nullptr;
  {
    const std::lock_guard lock(shelf_->mutex);
    const auto found = shelf_->free.lower_bound(size);
    if (found != shelf_->free.end() && found->first - size <= size / 4) {
      size = found->first;
      data = found->second.back();
      found->second.pop_back();
      if (found->second.empty()) shelf_->free.erase(found);
    }
  }
  if (data == nullptr) {
    void* memory = nullptr;
    check(cudaMallocHost(&memory, size), "allocating pinned host memory");
    data = static_cast<std::byte*>(memory);
  }
  return {data, [shelf = shelf_, size](std::byte* given) {
            const std::lock_guard lock(shelf->mutex);
            shelf->free[size].push_back(given);
          }};
}

}  // namespace servelab::cuda
