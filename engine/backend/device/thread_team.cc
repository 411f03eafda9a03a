#include "engine/backend/device/thread_team.h"

#include <pthread.h>
#include <sched.h>

#include <utility>

#include "engine/core/check.h"
#include "engine/core/threads.h"

namespace servelab {
namespace {

// Spins before giving the core away: about 50 us, more than a step's sequential parts take. Twice
// as many before sleeping.
constexpr int kSpinsBeforeYield = 2000;

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void pin_to(const std::vector<int>& cores, int member) {
  if (!cores.empty()) pin_to_core(cores[static_cast<std::size_t>(member) % cores.size()]);
}

}  // namespace

ThreadTeam::ThreadTeam(int size, std::vector<int> cores)
    : size_(size),
      spins_(static_cast<std::size_t>(size) <= usable_cores().size() ? kSpinsBeforeYield : 0),
      cores_(std::move(cores)) {
  SL_CHECK(size >= 1, "a team has a member");
  threads_ = start_threads(
      size - 1, [this](int thread) { serve(thread + 1); }, [this] { stop(); });
}

void ThreadTeam::stop() {
  stop_.store(true);
  round_.fetch_add(1);
  round_.notify_all();
}

ThreadTeam::~ThreadTeam() {
  stop();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadTeam::pin_caller() const { pin_to(cores_, 0); }

void ThreadTeam::serve(int member) {
  pin_to(cores_, member);
  std::uint32_t seen = 0;
  for (;;) {
    for (int spins = 0; round_.load(std::memory_order_acquire) == seen; ++spins) {
      if (spins < 2 * spins_) {
        relax();
      } else {
        round_.wait(seen, std::memory_order_acquire);
      }
    }
    ++seen;
    if (stop_.load()) return;
    (*work_)(member);
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadTeam::run(const std::function<void(int)>& work) {
  work_ = &work;
  busy_.store(size_ - 1, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  work(0);
  for (int spins = 0; busy_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < spins_) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadTeam::barrier() {
  if (size_ == 1) return;
  const std::uint32_t passed = passed_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
    arrived_.store(0, std::memory_order_relaxed);
    passed_.store(passed + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; passed_.load(std::memory_order_acquire) == passed; ++spins) {
    if (spins < spins_) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

void pin_to_core(int core) {
  if (core < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  // A refused pin costs speed, not correctness.
  (void)::pthread_setaffinity_np(::pthread_self(), sizeof set, &set);
}

std::vector<int> usable_cores() {
  std::vector<int> cores;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) cores.push_back(core);
    }
  }
  if (cores.empty()) cores.push_back(0);
  return cores;
}

}  // namespace servelab
