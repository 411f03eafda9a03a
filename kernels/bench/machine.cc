#include "kernels/bench/machine.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>

#ifdef __linux__
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#endif

#include "kernels/cpu/peak.h"

namespace servelab::kernels {
namespace {

void pin(int processor) {
#ifdef __linux__
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(processor), &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
#else
  static_cast<void>(processor);
#endif
}

// A piece at a time, as large as a small model's weights: on a shared machine longer runs are
// rarely left alone. A piece's turn comes again after the others, which no cache holds.
double read_bandwidth(Team& team) {
  constexpr std::size_t kPieces = 5;
  constexpr std::size_t kPiece = std::size_t{1} << 28;
  const Memory memory(kPieces * kPiece);
  std::atomic<std::uint64_t> sink{0};
  const auto share = kPiece / static_cast<std::size_t>(team.size()) / 64 * 64;
  std::size_t piece = 0;
  const double time = seconds([&] {
    const char* const from = static_cast<const char*>(memory.data()) + piece * kPiece;
    piece = (piece + 1) % kPieces;
    team.run([&](int part) {
      sink += read_all(best_isa(), from + share * static_cast<std::size_t>(part), share);
    });
  });
  return static_cast<double>(share) * team.size() / time;
}

double peak(Team& team, DType type) {
  constexpr int kRounds = 2000000;
  std::atomic<double> flops{0};
  const double time = seconds([&] {
    team.run([&](int part) {
      const double spent = spend_flops(best_isa(), type, kRounds);
      if (part == 0) flops = spent;
    });
  });
  return flops * team.size() / time;
}

}  // namespace

Team::Team(int size) : size_(size) {
  pin(0);
  for (int part = 1; part < size; ++part) threads_.emplace_back([this, part] { follow(part); });
}

Team::~Team() {
  stop_ = true;
  round_.fetch_add(1);
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(const std::function<void(int)>& work) {
  work_ = &work;
  round_.fetch_add(1);
  work(0);
  meet();
}

void Team::meet() {
  const int meeting = meetings_.load();
  if (arrived_.fetch_add(1) + 1 == size_) {
    arrived_ = 0;
    meetings_.fetch_add(1);
  } else {
    while (meetings_.load() == meeting) {
    }
  }
}

void Team::follow(int part) {
  pin(part);
  for (int round = 1;; ++round) {
    while (round_.load() < round) std::this_thread::yield();
    if (stop_) return;
    (*work_)(part);
    meet();
  }
}

Memory::Memory(std::size_t bytes) {
  constexpr std::size_t kHuge = std::size_t{2} << 20;
  const std::size_t size = (bytes + kHuge - 1) / kHuge * kHuge;
  data_.reset(std::aligned_alloc(kHuge, size));
  if (data_ == nullptr) throw std::bad_alloc();
#ifdef __linux__
  madvise(data_.get(), size, MADV_HUGEPAGE);
#endif
  std::memset(data_.get(), 0, size);
}

void Memory::Free::operator()(void* p) const { std::free(p); }

Machine measure(Team& team) {
  return {read_bandwidth(team), peak(team, DType::kBf16), peak(team, DType::kF32)};
}

double seconds(const std::function<void()>& run) {
  using Clock = std::chrono::steady_clock;
  run();
  double best = 1e30;
  double total = 0;
  for (int i = 0; i < 3 || (total < 0.5 && i < 1000); ++i) {
    const auto start = Clock::now();
    run();
    const double time = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::min(best, time);
    total += time;
  }
  return best;
}

}  // namespace servelab::kernels
