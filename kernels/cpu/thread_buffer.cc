#include "kernels/cpu/thread_buffer.h"

#include <cstdlib>
#include <memory>
#include <new>

namespace servelab::kernels {
namespace {

struct Free {
  void operator()(void* p) const { std::free(p); }
};

}  // namespace

void* thread_buffer(std::size_t bytes) {
  constexpr std::size_t kGrain = 4096;
  thread_local std::unique_ptr<void, Free> buffer;
  thread_local std::size_t size = 0;
  if (bytes > size) {
    size = (bytes + kGrain - 1) / kGrain * kGrain;
    buffer.reset(std::aligned_alloc(64, size));
    if (buffer == nullptr) throw std::bad_alloc();
  }
  return buffer.get();
}

}  // namespace servelab::kernels
