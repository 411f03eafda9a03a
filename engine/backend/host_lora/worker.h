// A LoRA worker: waits for rounds on its line of the board, or for messages on a socket, until it
// is told to stop.
#ifndef SERVELAB_BACKEND_HOST_LORA_WORKER_H_
#define SERVELAB_BACKEND_HOST_LORA_WORKER_H_

#include <functional>

#include "engine/backend/host_lora/compute.h"

namespace servelab::host_lora {

// Returns when the board says stop, or when `orphaned`, asked every tenth of a second that nothing
// happens, says that there is no engine any more. What it has no memory for is noted in its line.
void serve_board(const kernels::Ops& ops, const Memory& memory, int worker,
                 const std::function<bool()>& orphaned);

// What the engine hands to a worker that is a process: open files by these numbers.
inline constexpr int kExchangeDescriptor = 3;  // memory: the board, and behind it x and results
inline constexpr int kWeightsDescriptor = 4;   // memory: adapters
inline constexpr int kLifelineDescriptor = 5;  // a socket that ends with the engine
inline constexpr int kSocketDescriptor = 6;    // for messages; without them there is none

// The life of such a process; returns its exit code.
int serve_process(int worker);

}  // namespace servelab::host_lora

#endif  // SERVELAB_BACKEND_HOST_LORA_WORKER_H_
