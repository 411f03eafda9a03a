// Streams that wait for the host: the runtime has no call for it, the driver has.
#ifndef SERVELAB_BACKEND_CUDA_STREAM_WAIT_H_
#define SERVELAB_BACKEND_CUDA_STREAM_WAIT_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace servelab::cuda {

// Throws SpecError where the driver cannot do it.
void require_stream_wait();

// Later work of `stream` waits until *value, in pinned host memory, has come to `number` or gone
// beyond it (numbers wrap around). No multiprocessor is busy with it. Not while the stream is
// recorded. Throws SpecError.
void hold_until(cudaStream_t stream, const std::uint32_t* value, std::uint32_t number);

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_STREAM_WAIT_H_
