#include "engine/backend/cuda/host_workers.h"

#include <chrono>
#include <utility>

#include "engine/core/check.h"

namespace servelab::cuda {
namespace {

// Looks at a signal before the core is given away for a moment: some milliseconds, more than a
// layer of most steps takes.
constexpr int kLooksBeforeSleep = 20000;
constexpr auto kNap = std::chrono::microseconds(20);

}  // namespace

HostWorkers::HostWorkers(int threads, std::vector<int> cores, std::uint32_t* signal,
                         std::uint32_t* reply)
    : team_(threads, std::move(cores)),
      signal_(signal),
      reply_(reply),
      leader_([this] { lead(); }) {}

HostWorkers::~HostWorkers() {
  abandon();
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  leader_.join();
}

std::uint32_t HostWorkers::begin(int jobs, int pieces, std::function<void(int, int)> work) {
  SL_CHECK(jobs >= 1 && pieces >= 1, "the host has something to do in its steps");
  {
    const std::lock_guard lock(mutex_);
    SL_CHECK(!busy_, "the host's LoRA follows one step at a time");
    work_ = std::move(work);
    pieces_ = static_cast<std::uint64_t>(pieces);
    tickets_ = pieces_ * static_cast<std::uint64_t>(jobs);
    first_ = after_;
    after_ += static_cast<std::uint32_t>(jobs);
    next_.store(0);
    done_.store(0);
    abandoned_.store(false);
    failed_.store(false);
    failure_ = nullptr;
    busy_ = true;
  }
  changed_.notify_all();
  return first_;
}

void HostWorkers::wait_until_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !busy_; });
}

void HostWorkers::finish() {
  wait_until_idle();
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void HostWorkers::abandon() {
  abandoned_.store(true);
  wait_until_idle();
  std::atomic_ref(*reply_).store(after_ - 1, std::memory_order_release);
}

// The team's first member, so that begin() returns at once.
void HostWorkers::lead() {
  team_.pin_caller();
  const std::function<void(int)> serve_all = [this](int /*member*/) { serve(); };
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return busy_ || stop_; });
    if (!busy_) return;
    lock.unlock();
    team_.run(serve_all);
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

// Whoever is free takes the next piece of the step and waits for its job's signal. No piece of a
// job can begin before the one before it was replied to, so the count of finished pieces tells when
// a job is done.
void HostWorkers::serve() {
  for (;;) {
    const std::uint64_t ticket = next_.fetch_add(1, std::memory_order_relaxed);
    if (ticket >= tickets_) return;
    const std::uint64_t job = ticket / pieces_;
    const std::uint32_t number = first_ + static_cast<std::uint32_t>(job);
    if (!signalled(number)) return;
    try {
      if (!failed_.load()) work_(static_cast<int>(job), static_cast<int>(ticket % pieces_));
    } catch (...) {
      keep_failure();
    }
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == (job + 1) * pieces_) {
      std::atomic_ref(*reply_).store(number, std::memory_order_release);
    }
  }
}

bool HostWorkers::signalled(std::uint32_t number) const {
  const std::atomic_ref signal(*signal_);
  for (int looks = 0;; ++looks) {
    if (abandoned_.load(std::memory_order_relaxed)) return false;
    const std::uint32_t seen = signal.load(std::memory_order_acquire);
    if (static_cast<std::int32_t>(seen - number) >= 0) return true;
    if (looks < kLooksBeforeSleep) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
}

void HostWorkers::keep_failure() {
  const std::lock_guard lock(mutex_);
  if (failure_ == nullptr) failure_ = std::current_exception();
  failed_.store(true);
}

}  // namespace servelab::cuda
