#include "engine/backend/device/rank_team.h"

#include "engine/core/threads.h"

namespace servelab {

RankTeam::RankTeam(int ranks) : failures_(static_cast<std::size_t>(ranks)) {
  threads_ = start_threads(
      ranks, [this](int rank) { serve(rank); }, [this] { stop(); });
}

void RankTeam::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
}

RankTeam::~RankTeam() {
  stop();
  for (std::thread& thread : threads_) thread.join();
}

void RankTeam::run(const std::function<void(int)>& work) {
  const std::lock_guard call(calls_);
  std::unique_lock lock(mutex_);
  failures_.assign(failures_.size(), nullptr);
  work_ = &work;
  busy_ = static_cast<int>(threads_.size());
  ++round_;
  changed_.notify_all();
  changed_.wait(lock, [this] { return busy_ == 0; });
  for (const std::exception_ptr& failure : failures_) {
    if (failure != nullptr) std::rethrow_exception(failure);
  }
}

void RankTeam::serve(int rank) {
  std::uint64_t served = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || round_ != served; });
    if (stop_) return;
    served = round_;
    const std::function<void(int)>* const work = work_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      (*work)(rank);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    failures_[static_cast<std::size_t>(rank)] = failure;
    if (--busy_ == 0) changed_.notify_all();
  }
}

}  // namespace servelab
