// The CUDA runtime's calls that the engine makes, where the device is the host: its memory is ours,
// and what is put on a stream is run by the calling thread.
//
// Streams are lazy: work happens when the host waits for it, or when other work that the host waits
// for has to wait for it. So a copy that nobody waited for comes too late, and the engine's results
// are wrong: a missing dependency between streams is a failing test here, not a rare race.
#ifndef SERVELAB_TESTS_CUDA_ENGINE_HOST_DEVICE_H_
#define SERVELAB_TESTS_CUDA_ENGINE_HOST_DEVICE_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

namespace servelab::host_device {

// Puts work on a stream; a stream that is recorded keeps it for its graph.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work);

// For work that other threads' work must follow up: waits until `condition`, asked when notify() is
// called, while other streams go on. Called from within work on a stream.
void wait_until(const std::function<bool()>& condition);
void notify();
// The same for what other processes do: asks again and again.
void wait_polling(const std::function<bool()>& condition);

// A signal to the host that work on a stream gives. It is as late as it may be: the host sees it
// when a stream waits for the host's reply (give_signals), or has come to its end.
void signal_late(std::function<void()> signal);
void give_signals();

// A device that fails: with `work` more pieces of work done, or `calls` more of them enqueued, it
// does nothing any more, and every call that puts work on a stream or waits for it reports an
// error, until mend(). What was enqueued and not waited for until then is done afterwards.
void fail_after_work(int work);
void fail_after_calls(int calls);
void mend();

// Not lazy: work runs as soon as it is enqueued, for kernels that do not ask the stream.
void set_lazy(bool lazy);

// From now on the host's own allocations (operator new) of as many bytes fail.
void refuse_memory_of(std::size_t bytes);

// What cudaMemGetInfo reports as free.
void set_free_memory(std::size_t bytes);

}  // namespace servelab::host_device

#endif  // SERVELAB_TESTS_CUDA_ENGINE_HOST_DEVICE_H_
