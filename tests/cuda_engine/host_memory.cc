// A host that has no memory left. In a file of its own, so that no compiler sees both sides of it.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "tests/cuda_engine/host_device.h"

namespace {

std::atomic<std::size_t> refused{SIZE_MAX};

}  // namespace

namespace servelab::host_device {

void refuse_memory_of(std::size_t bytes) { refused.store(bytes); }

}  // namespace servelab::host_device

// What allocates must be replaced together with what frees it.
void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return bytes < refused.load() ? std::malloc(bytes == 0 ? 1 : bytes) : nullptr;
}
void* operator new(std::size_t bytes) {
  void* const memory = operator new(bytes, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t& /*tag*/) noexcept { std::free(memory); }
