#include "tests/cuda_engine/host_device.h"

#include <sys/mman.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

// The opaque types behind the runtime's handles.
struct CUevent_st {
  CUstream_st* stream = nullptr;  // of the latest record; null: never recorded
  std::uint64_t position = 0;     // reached when the stream has done as many
  std::chrono::steady_clock::time_point time;
};
struct CUstream_st {
  std::deque<std::function<void()>> queue;
  std::uint64_t enqueued = 0;
  std::uint64_t done = 0;
  std::vector<std::function<void()>>* recording = nullptr;
};
struct CUgraph_st {
  std::vector<std::function<void()>> work;
};
struct CUgraphExec_st {
  std::vector<std::function<void()>> work;
};

namespace servelab::host_device {
namespace {

constexpr int kDevices = 4;  // all of them the host
constexpr int kMultiprocessors = 4;
constexpr unsigned char kPoison = 0xff;  // NaN in every type
constexpr std::size_t kHugePage = 2 << 20;

bool lazy = true;
std::size_t free_memory = std::size_t{2} << 30;

constexpr int kNever = -1;
int work_left = kNever;  // before the device fails
int calls_left = kNever;
bool failed = false;

// Counts down to the failure.
void spend(int* left) {
  if (*left == kNever || (*left)-- > 0) return;
  failed = true;
  *left = kNever;
}

std::vector<std::function<void()>>& late_signals() {
  static std::vector<std::function<void()>> instance;
  return instance;
}

// One for all streams: work may wait for other streams.
std::recursive_mutex& mutex() {
  static std::recursive_mutex instance;
  return instance;
}

std::condition_variable_any& changed() {
  static std::condition_variable_any instance;
  return instance;
}

void run_to(CUstream_st* stream, std::uint64_t position) {
  while (stream->done < position) {
    const std::function<void()> work = std::move(stream->queue.front());
    stream->queue.pop_front();
    spend(&work_left);
    if (!failed) work();
    ++stream->done;
  }
}

cudaError_t state() { return failed ? cudaErrorLaunchFailure : cudaSuccess; }

}  // namespace

cudaError_t enqueue(cudaStream_t stream, std::function<void()> work) {
  const std::lock_guard lock(mutex());
  if (stream->recording != nullptr) {
    stream->recording->push_back(std::move(work));
    return cudaSuccess;
  }
  spend(&calls_left);
  if (failed) return state();
  stream->queue.push_back(std::move(work));
  ++stream->enqueued;
  if (!lazy) run_to(stream, stream->enqueued);
  return state();
}

// With the mutex: all of this is called by work on streams, or when it has ended.
void signal_late(std::function<void()> signal) { late_signals().push_back(std::move(signal)); }
void give_signals() {
  for (const auto& signal : std::exchange(late_signals(), {})) signal();
}

void fail_after_work(int work) { work_left = work; }
void fail_after_calls(int calls) { calls_left = calls; }
void mend() {
  const std::lock_guard lock(mutex());
  failed = false;
  work_left = calls_left = kNever;
  late_signals().clear();
}

// The caller holds the mutex once, as cudaStreamSynchronize does.
void wait_until(const std::function<bool()>& condition) { changed().wait(mutex(), condition); }
void notify() { changed().notify_all(); }
void wait_polling(const std::function<bool()>& condition) {
  while (!condition()) changed().wait_for(mutex(), std::chrono::microseconds(50));
}

void set_lazy(bool value) { lazy = value; }
void set_free_memory(std::size_t bytes) { free_memory = bytes; }

}  // namespace servelab::host_device

using servelab::host_device::enqueue;
using servelab::host_device::free_memory;
using servelab::host_device::kDevices;
using servelab::host_device::kHugePage;
using servelab::host_device::kMultiprocessors;
using servelab::host_device::kPoison;
using servelab::host_device::mutex;
using servelab::host_device::run_to;
using servelab::host_device::state;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return device < kDevices ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int /*device*/) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = kMultiprocessors;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = 227 * 1024;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 8;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      return cudaSuccess;
    default:
      return cudaErrorNotSupported;
  }
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  *properties = {};
  std::strcpy(properties->name, "a device on the host");
  properties->major = 8;
  properties->totalGlobalMem = free_memory;
  properties->multiProcessorCount = kMultiprocessors;
  properties->l2CacheSize = 1 << 20;
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "an error of the device on the host";
}
cudaError_t cudaGetLastError() { return cudaSuccess; }

// --- memory: what was never written is NaN ---

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  const std::size_t unit = bytes < kHugePage ? 256 : kHugePage;
  *memory = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
  if (*memory == nullptr) return cudaErrorMemoryAllocation;
  // Every engine has a workspace of 32 MiB: in small pages half of a test's time goes there.
  if (unit == kHugePage) static_cast<void>(::madvise(*memory, bytes, MADV_HUGEPAGE));
  std::memset(*memory, kPoison, bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) { return cudaMalloc(memory, bytes); }
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaHostRegister(void*, std::size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = free_memory;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return enqueue(stream, [=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind, cudaStream_t stream) {
  return enqueue(stream, [=] {
    for (std::size_t i = 0; i < height; ++i) {
      std::memcpy(static_cast<char*>(to) + i * to_pitch,
                  static_cast<const char*>(from) + i * from_pitch, width);
    }
  });
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return enqueue(stream, [=] { std::memset(to, value, bytes); });
}

// --- streams and events ---

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  cudaStreamSynchronize(stream);
  delete stream;
  return cudaSuccess;
}
// Who asks gives the stream its turn: it has come to its end.
cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaStreamSynchronize(stream); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const std::lock_guard lock(mutex());
  if (stream->recording != nullptr) return cudaErrorStreamCaptureUnsupported;
  run_to(stream, stream->enqueued);
  servelab::host_device::give_signals();
  return state();
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::lock_guard lock(mutex());
  // Work that waits for it, or stamps it, holds its address.
  if (event->stream != nullptr) run_to(event->stream, event->stream->enqueued);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard lock(mutex());
  if (stream->recording != nullptr) return cudaErrorStreamCaptureUnsupported;
  event->stream = stream;
  event->position = stream->enqueued + 1;
  return enqueue(stream, [event] { event->time = std::chrono::steady_clock::now(); });
}
// The record that it was at the time of the call.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::lock_guard lock(mutex());
  if (event->stream == nullptr) return cudaSuccess;
  return enqueue(stream,
                 [from = event->stream, position = event->position] { run_to(from, position); });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const std::lock_guard lock(mutex());
  if (event->stream != nullptr) run_to(event->stream, event->position);
  return cudaSuccess;
}
// Asking does not make it happen.
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard lock(mutex());
  const bool reached = event->stream == nullptr || event->stream->done >= event->position;
  return reached ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const std::lock_guard lock(mutex());
  for (const cudaEvent_t event : {begin, end}) {
    if (event->stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (event->stream->done < event->position) return cudaErrorNotReady;
  }
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - begin->time).count();
  return cudaSuccess;
}

// --- graphs ---

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const std::lock_guard lock(mutex());
  stream->recording = new std::vector<std::function<void()>>;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(mutex());
  *graph = new CUgraph_st{std::move(*stream->recording)};
  delete std::exchange(stream->recording, nullptr);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  *executable = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return enqueue(stream, [work = executable->work] {
    for (const auto& each : work) each();
  });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}

}  // extern "C"
