// Waits for the host on the streams of host_device.h.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "engine/backend/cuda/stream_wait.h"
#include "engine/core/check.h"
#include "tests/cuda_engine/host_device.h"

namespace servelab::cuda {
namespace {

constexpr auto kLongest = std::chrono::seconds(60);  // far beyond any step of a test

}  // namespace

void require_stream_wait() {}

void hold_until(cudaStream_t stream, const std::uint32_t* value, std::uint32_t number) {
  const cudaError_t error = host_device::enqueue(stream, [value, number] {
    host_device::give_signals();
    const std::atomic_ref word(*const_cast<std::uint32_t*>(value));
    const auto end = std::chrono::steady_clock::now() + kLongest;
    while (static_cast<std::int32_t>(word.load(std::memory_order_acquire) - number) < 0) {
      if (std::chrono::steady_clock::now() > end) {
        std::fprintf(stderr, "a stream waits for the host's reply %u for ever\n", number);
        std::abort();
      }
      std::this_thread::yield();
    }
  });
  if (error != cudaSuccess) throw SpecError("the device on the host has failed");
}

}  // namespace servelab::cuda
