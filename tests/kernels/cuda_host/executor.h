// Runs a grid of device threads on the host: block after block, each block's threads as fibers that
// hand over at barriers and warp operations. What a real device would leave undefined and can be
// seen here ends the launch with a message: threads that wait at different barriers or warp
// operations, that have exited while others wait, reads of copies that were not awaited (they see
// NaN), writes past the shared memory that the launch asked for.
#ifndef SERVELAB_TESTS_KERNELS_CUDA_HOST_EXECUTOR_H_
#define SERVELAB_TESTS_KERNELS_CUDA_HOST_EXECUTOR_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <string>

#include "tests/kernels/cuda_host/where.h"

namespace servelab::cuda_host {

// cudaErrorLaunchFailure after a failure, whose message is printed and kept for last_failure().
cudaError_t run_grid(dim3 grid, dim3 block, std::size_t shared_bytes,
                     const std::function<void()>& kernel);
const std::string& last_failure();

// --- called by device threads ---

char* shared_memory();
void block_barrier(int id, int threads, const Where& where);  // threads 0: all

// All 32 lanes meet; the last one to come runs `act` on every lane's arguments, in lane order.
using WarpAction = void (*)(void* const (&lanes)[32]);
void warp_operation(const char* name, void* arguments, WarpAction act, const Where& where);

// As cp.async, its commit_group and wait_group. Until awaited, the destination is poisoned.
void copy_async(void* shared, const void* global, bool valid, const Where& where);
void copy_async_commit();
void copy_async_wait(std::size_t pending);

// Ends the launch with this message if `condition` is false. Does not return then.
void require(bool condition, const char* message, const Where& where);
bool in_shared_memory(const void* address, std::size_t bytes);

}  // namespace servelab::cuda_host

#endif  // SERVELAB_TESTS_KERNELS_CUDA_HOST_EXECUTOR_H_
