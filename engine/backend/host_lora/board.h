// What an engine and its LoRA workers share: a board in memory that both sides see, threads in one
// process or processes of their own. The engine writes down a round (a forward pass: which rows
// belong to which adapter, and the matrices in their order), and gives it to each worker by the
// word of the worker's own line. Then, matrix by matrix, the signal says that x is there, and each
// worker says in its line that its part of x A B is done. Nothing is said by a system call unless
// somebody has gone to sleep.
#ifndef SERVELAB_BACKEND_HOST_LORA_BOARD_H_
#define SERVELAB_BACKEND_HOST_LORA_BOARD_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace servelab::host_lora {

inline constexpr int kMostWorkers = 256;
inline constexpr int kMostTargets = 3;  // q, k and v, which share their x

// A linear layer (LinearLayer) whose output are these columns of a row of results.
struct Target {
  std::int32_t layer_kind = 0;
  std::int32_t column = 0;
  std::int32_t columns = 0;
};

// One matrix of one layer, or several that are multiplied as one, as they have one input.
struct Job {
  std::int32_t layer = 0;
  std::int32_t k = 0;  // of x
  std::int32_t n = 0;  // of a row of results
  std::int32_t targets = 0;
  std::array<Target, kMostTargets> target = {};
};

// Rows of one adapter that one worker computes.
struct Piece {
  std::uint64_t adapter = 0;  // where its table is (PackedAdapter), from the weights' begin
  std::int32_t begin = 0;
  std::int32_t count = 0;
};

// How rows lie in memory, the same for all jobs.
struct Rows {
  kernels::DType x_type = kernels::DType::kF32;
  kernels::DType out_type = kernels::DType::kF32;
  std::int64_t ldx = 0;  // elements; 0: a job's k
  std::int64_t ldo = 0;  // elements; 0: a job's n
  bool scaled = true;    // results times the adapter's scale; else the engine multiplies by it
};

struct Round {
  Rows rows;
  std::uint32_t first = 0;  // the number of job 0
  std::int32_t jobs = 0;
  std::int32_t pieces = 0;
};

// A worker's. Its units of a job with `pieces * targets` of them are position, position + workers,
// position + 2 workers, ...: piece unit / targets, target unit % targets.
struct alignas(64) Line {
  // Written by the engine.
  std::atomic<std::uint32_t> round{0};  // raised to begin one
  std::int32_t position = 0;
  std::int32_t workers = 0;
  std::atomic<std::uint32_t> listening{0};  // the engine sleeps until `done` or `left` change
  // Written by the worker.
  alignas(64) std::atomic<std::uint32_t> done{0};  // the latest job whose part it has done
  std::atomic<std::uint32_t> left{0};              // the latest round that it is through with
  std::atomic<std::uint32_t> ready{0};             // it has begun to listen
  std::atomic<std::uint32_t> asleep{0};            // until `round` or the signal change
  std::atomic<std::uint32_t> failed{0};            // in this round: it had no memory
  std::int64_t compute_ns = 0;                     // of job `done`
  std::int64_t done_at = 0;                        // steady clock, ns
};

// For workers that are processes: where in this memory the rest is, and who they are.
struct Layout {
  std::int64_t engine = 0;  // its process
  std::int32_t isa = 0;     // kernels::Isa
  bool sockets = false;     // x and x A B come and go by sockets
  std::uint64_t weights_bytes = 0;
  std::uint64_t jobs_at = 0;
  std::uint64_t pieces_at = 0;
  std::uint64_t x_at = 0;
  std::uint64_t out_at = 0;
  std::int32_t core[kMostWorkers] = {};  // to keep to; -1: any
};

struct Board {
  alignas(64) std::atomic<std::uint32_t> signal{0};     // the latest job whose x is there
  alignas(64) std::atomic<std::uint32_t> abandoned{0};  // this round's signals may never come
  std::atomic<std::uint32_t> stop{0};
  // Looks at a word before its reader sleeps; few where workers and threads share cores.
  std::int32_t looks = 0;
  bool wakes = true;  // who signals wakes workers that sleep; else they look again by themselves
  std::uint64_t weights = 0;  // the engine's address of the weights' begin
  Round round;
  Layout layout;
  Line lines[kMostWorkers];
};

}  // namespace servelab::host_lora

#endif  // SERVELAB_BACKEND_HOST_LORA_BOARD_H_
