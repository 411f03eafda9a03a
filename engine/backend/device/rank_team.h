// A thread per rank. Collectives make ranks wait for each other, so each needs a thread of its own.
#ifndef SERVELAB_BACKEND_DEVICE_RANK_TEAM_H_
#define SERVELAB_BACKEND_DEVICE_RANK_TEAM_H_

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace servelab {

class RankTeam {
 public:
  explicit RankTeam(int ranks);
  ~RankTeam();
  RankTeam(const RankTeam&) = delete;
  RankTeam& operator=(const RankTeam&) = delete;

  // work(rank) on every rank's thread; returns when all have, and throws what the lowest of them
  // threw. A rank that fails between collectives leaves the others waiting for it.
  void run(const std::function<void(int)>& work);

 private:
  void serve(int rank);
  void stop();

  std::mutex calls_;  // one run() at a time
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(int)>* work_ = nullptr;
  std::uint64_t round_ = 0;
  int busy_ = 0;
  bool stop_ = false;
  std::vector<std::exception_ptr> failures_;
  std::vector<std::thread> threads_;
};

}  // namespace servelab

#endif  // SERVELAB_BACKEND_DEVICE_RANK_TEAM_H_
