// Working memory of the calling thread.
#ifndef SERVELAB_KERNELS_CPU_THREAD_BUFFER_H_
#define SERVELAB_KERNELS_CPU_THREAD_BUFFER_H_

#include <cstddef>

namespace servelab::kernels {

// At least `bytes`, 64-byte aligned, of unspecified content; valid until this thread's next call.
void* thread_buffer(std::size_t bytes);

}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_CPU_THREAD_BUFFER_H_
