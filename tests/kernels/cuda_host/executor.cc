#include "tests/kernels/cuda_host/executor.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tests/kernels/cuda_host/fiber.h"
#include "tests/kernels/cuda_host/indices.h"

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace servelab::cuda_host {
namespace {

constexpr int kWarp = 32;
constexpr std::size_t kMaxThreads = 1024;
constexpr std::size_t kMaxShared = 227 * 1024;  // of one block, compute capability 9.0
constexpr std::size_t kGuard = 1024;
constexpr unsigned char kPoison = 0xff;  // NaN as f32, bf16 and f16
constexpr unsigned char kGuardPattern = 0xa5;

struct PendingCopy {
  void* to;
  const void* from;  // null: zeros
};

enum class State { kReady, kAtBarrier, kInWarpOperation, kDone };

struct Thread {
  Fiber* fiber = nullptr;
  uint3 index = {};
  int number = 0;
  State state = State::kReady;
  Where where;
  const char* operation = "";
  void* arguments = nullptr;
  std::vector<PendingCopy> open_copies;
  std::deque<std::vector<PendingCopy>> groups;
};

struct WarpMeeting {
  int arrived = 0;
  const Thread* first = nullptr;
};

struct Barrier {
  int arrived = 0;
  int expected = 0;
  Where where;
};

bool same_place(const Where& a, const Where& b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

std::string place(const Where& where) {
  const std::string file = where.file;
  const std::size_t slash = file.rfind('/');
  return file.substr(slash == std::string::npos ? 0 : slash + 1) + ":" + std::to_string(where.line);
}

class Block {
 public:
  // Runs all threads of block `index`; false after a failure.
  bool run(const std::function<void()>& kernel, dim3 block, std::size_t shared_bytes,
           std::uint32_t order);

  Thread& current() { return *current_; }
  char* shared() { return shared_begin_; }
  std::size_t shared_bytes() const { return shared_bytes_; }
  const std::string& failure() const { return failure_; }
  void barrier(int id, int threads, const Where& where);
  void warp_operation(const char* name, void* arguments, WarpAction act, const Where& where);
  // Does not return, and so destroys nothing of its callers: they hand over what they built.
  [[noreturn]] void fail(std::string&& message);

 private:
  static void thread_main(void* block);
  void prepare(dim3 block, std::size_t shared_bytes);
  void suspend() { current_->fiber->leave(); }
  bool run_warp(int warp, bool backwards);
  void check_end();
  std::string stuck() const;

  const std::function<void()>* kernel_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;  // kept from block to block
  std::vector<Thread> threads_;
  std::vector<WarpMeeting> meetings_;  // of each warp
  std::map<int, Barrier> barriers_;
  Thread* current_ = nullptr;
  std::vector<char> shared_;
  char* shared_begin_ = nullptr;
  std::size_t shared_bytes_ = 0;
  std::string failure_;
};

Block& the_block() {
  static Block block;
  return block;
}

void Block::prepare(dim3 block, std::size_t shared_bytes) {
  std::string().swap(failure_);  // gives its memory back: fail() takes over another string's
  barriers_.clear();
  const std::size_t count = std::size_t{block.x} * block.y * block.z;
  while (fibers_.size() < count) fibers_.push_back(std::make_unique<Fiber>());
  threads_.resize(count);
  meetings_.assign((count + kWarp - 1) / kWarp, {});
  for (std::size_t i = 0; i < count; ++i) {
    Thread& thread = threads_[i];
    thread.fiber = fibers_[i].get();
    thread.index = {static_cast<unsigned>(i) % block.x,
                    static_cast<unsigned>(i) / block.x % block.y,
                    static_cast<unsigned>(i) / (block.x * block.y)};
    thread.number = static_cast<int>(i);
    thread.state = State::kReady;
    thread.open_copies.clear();
    thread.groups.clear();
    thread.fiber->start(&Block::thread_main, this);
  }
  shared_.assign(shared_bytes + 3 * kGuard, static_cast<char>(kGuardPattern));
  const auto address = reinterpret_cast<std::uintptr_t>(shared_.data()) + kGuard;
  shared_begin_ = shared_.data() + kGuard + (kGuard - address % kGuard) % kGuard;
  shared_bytes_ = shared_bytes;
  std::memset(shared_begin_, kPoison, shared_bytes);
}

void Block::thread_main(void* block) {
  auto* const self = static_cast<Block*>(block);
  (*self->kernel_)();
  Thread& thread = *self->current_;
  if (!thread.open_copies.empty() || !thread.groups.empty()) {
    std::string message = "thread " + std::to_string(thread.number) +
                          " ends with asynchronous copies that it never waited for";
    self->fail(std::move(message));
  }
  thread.state = State::kDone;
  self->suspend();
}

// Lets the warp's threads run until all of them wait for others or are done.
bool Block::run_warp(int warp, bool backwards) {
  const int begin = warp * kWarp;
  const int end = std::min(begin + kWarp, static_cast<int>(threads_.size()));
  bool any = false;
  for (bool again = true; again;) {
    again = false;
    for (int i = begin; i < end; ++i) {
      Thread& thread = threads_[static_cast<std::size_t>(backwards ? begin + end - 1 - i : i)];
      if (thread.state != State::kReady) continue;
      current_ = &thread;
      threadIdx = thread.index;
      thread.fiber->enter();
      if (!failure_.empty()) return false;
      any = again = true;
    }
  }
  return any;
}

bool Block::run(const std::function<void()>& kernel, dim3 block, std::size_t shared_bytes,
                std::uint32_t order) {
  kernel_ = &kernel;
  prepare(block, shared_bytes);
  const int warps = static_cast<int>(meetings_.size());
  for (bool any = true; any && failure_.empty();) {
    any = false;
    // Another order of warps each time: a missing barrier then changes results.
    order = order * 1664525u + 1013904223u;
    const int first = static_cast<int>((order >> 8) % static_cast<unsigned>(warps));
    const bool backwards = (order >> 31) != 0;
    for (int i = 0; i < warps && failure_.empty(); ++i) {
      const int step = backwards ? warps - i : i;
      any |= run_warp((first + step) % warps, backwards);
    }
  }
  if (failure_.empty()) check_end();
  return failure_.empty();
}

void Block::check_end() {
  for (const Thread& thread : threads_) {
    if (thread.state != State::kDone) {
      failure_ = stuck();
      return;
    }
  }
  const char* const end = shared_.data() + shared_.size();
  for (const char* at = shared_.data(); at != end; ++at) {
    const bool outside = at < shared_begin_ || at >= shared_begin_ + shared_bytes_;
    if (outside && static_cast<unsigned char>(*at) != kGuardPattern) {
      failure_ = "a write outside of shared memory, at byte " + std::to_string(at - shared_begin_) +
                 " of " + std::to_string(shared_bytes_);
      return;
    }
  }
}

std::string Block::stuck() const {
  std::map<std::string, int> where;
  for (const Thread& thread : threads_) {
    ++where[thread.state == State::kDone
                ? "have exited"
                : std::string("wait in ") + thread.operation + " at " + place(thread.where)];
  }
  std::string text = "threads wait for each other for ever:";
  for (const auto& [what, count] : where) text += " " + std::to_string(count) + " " + what + ";";
  text.back() = '.';
  return text;
}

void Block::fail(std::string&& message) {
  failure_ = std::move(message);
  suspend();
  std::abort();  // a failed block's threads are never resumed
}

void Block::barrier(int id, int threads, const Where& where) {
  const int expected = threads == 0 ? static_cast<int>(threads_.size()) : threads;
  Barrier& barrier = barriers_[id];
  if (barrier.arrived == 0) {
    barrier.where = where;
    barrier.expected = expected;
  } else if (!same_place(barrier.where, where)) {
    std::string message = "thread " + std::to_string(current_->number) +
                          " reaches the barrier at " + place(where) + " while others wait at " +
                          place(barrier.where);
    fail(std::move(message));
  } else if (barrier.expected != expected) {
    std::string message = "threads disagree on how many the barrier at " + place(where) + " is for";
    fail(std::move(message));
  }
  if (++barrier.arrived < expected) {
    current_->state = State::kAtBarrier;
    current_->operation = "a barrier";
    current_->where = where;
    current_->arguments = &barrier;
    suspend();
    return;
  }
  barrier.arrived = 0;
  for (Thread& thread : threads_) {
    if (thread.state == State::kAtBarrier && thread.arguments == &barrier) {
      thread.state = State::kReady;
    }
  }
}

void Block::warp_operation(const char* name, void* arguments, WarpAction act, const Where& where) {
  const auto warp = static_cast<std::size_t>(current_->number / kWarp);
  const std::size_t begin = warp * kWarp;
  if (begin + kWarp > threads_.size()) {
    std::string message = std::string(name) + " in a warp of under 32 threads";
    fail(std::move(message));
  }
  WarpMeeting& meeting = meetings_[warp];
  if (meeting.arrived == 0) {
    meeting.first = current_;
  } else if (const Thread& first = *meeting.first;
             !same_place(first.where, where) ||
             (first.operation != name && std::strcmp(first.operation, name) != 0)) {
    std::string message = std::string("lanes of a warp part: one in ") + name + " at " +
                          place(where) + ", one in " + first.operation + " at " +
                          place(first.where);
    fail(std::move(message));
  }
  current_->operation = name;
  current_->where = where;
  current_->arguments = arguments;
  if (++meeting.arrived < kWarp) {
    current_->state = State::kInWarpOperation;
    suspend();
    return;
  }
  meeting.arrived = 0;
  void* lanes[kWarp];
  for (std::size_t i = 0; i < kWarp; ++i) {
    lanes[i] = threads_[begin + i].arguments;
    threads_[begin + i].state = State::kReady;
  }
  act(lanes);
}

void finish_copies(const std::vector<PendingCopy>& copies) {
  for (const PendingCopy& copy : copies) {
    if (copy.from == nullptr) {
      std::memset(copy.to, 0, 16);
    } else {
      std::memcpy(copy.to, copy.from, 16);
    }
  }
}

}  // namespace

cudaError_t run_grid(dim3 grid, dim3 block, std::size_t shared_bytes,
                     const std::function<void()>& kernel) {
  const std::size_t count = std::size_t{block.x} * block.y * block.z;
  if (count == 0 || count > kMaxThreads || shared_bytes > kMaxShared || grid.y > 65535 ||
      grid.z > 65535) {
    return cudaErrorInvalidConfiguration;
  }
  gridDim = grid;
  blockDim = block;
  std::uint32_t order = 1;
  for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z) {
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y) {
      for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
        if (the_block().run(kernel, block, shared_bytes, ++order)) continue;
        std::fprintf(stderr, "kernel on the host, block (%u, %u, %u): %s\n", blockIdx.x, blockIdx.y,
                     blockIdx.z, last_failure().c_str());
        return cudaErrorLaunchFailure;
      }
    }
  }
  return cudaSuccess;
}

const std::string& last_failure() { return the_block().failure(); }

char* shared_memory() { return the_block().shared(); }

void block_barrier(int id, int threads, const Where& where) {
  the_block().barrier(id, threads, where);
}

void warp_operation(const char* name, void* arguments, WarpAction act, const Where& where) {
  the_block().warp_operation(name, arguments, act, where);
}

bool in_shared_memory(const void* address, std::size_t bytes) {
  const auto* const at = static_cast<const char*>(address);
  return at >= the_block().shared() &&
         at + bytes <= the_block().shared() + the_block().shared_bytes();
}

void require(bool condition, const char* message, const Where& where) {
  if (condition) return;
  std::string text = std::string(message) + " at " + place(where);
  the_block().fail(std::move(text));
}

void copy_async(void* shared, const void* global, bool valid, const Where& where) {
  require(in_shared_memory(shared, 16), "an asynchronous copy to outside of shared memory", where);
  require(reinterpret_cast<std::uintptr_t>(shared) % 16 == 0, "an unaligned destination", where);
  require(!valid || reinterpret_cast<std::uintptr_t>(global) % 16 == 0, "an unaligned source",
          where);
  std::memset(shared, kPoison, 16);
  the_block().current().open_copies.push_back({shared, valid ? global : nullptr});
}

void copy_async_commit() {
  Thread& thread = the_block().current();
  thread.groups.push_back(std::move(thread.open_copies));
  thread.open_copies.clear();
}

void copy_async_wait(std::size_t pending) {
  Thread& thread = the_block().current();
  while (thread.groups.size() > pending) {
    finish_copies(thread.groups.front());
    thread.groups.pop_front();
  }
}

}  // namespace servelab::cuda_host
