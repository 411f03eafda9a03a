// Threads that follow a stream through a step. The step is a row of jobs, all cut into the same
// number of pieces; a job begins with a signal from the device and ends with a reply to it, which
// the stream waits for. Both are numbers in pinned memory, so neither side ever waits in a system
// call for the other: the threads look at the signal until it comes.
#ifndef SERVELAB_BACKEND_CUDA_HOST_WORKERS_H_
#define SERVELAB_BACKEND_CUDA_HOST_WORKERS_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/backend/device/thread_team.h"

namespace servelab::cuda {

class HostWorkers {
 public:
  // Thread i is pinned to cores[i % cores.size()]; empty: not pinned. `signal` and `reply` are zero
  // and outlive the workers.
  HostWorkers(int threads, std::vector<int> cores, std::uint32_t* signal, std::uint32_t* reply);
  ~HostWorkers();
  HostWorkers(const HostWorkers&) = delete;
  HostWorkers& operator=(const HostWorkers&) = delete;

  int threads() const { return team_.size(); }

  // Begins a step and returns the number of job 0; job i has that + i (wrapping around). Once the
  // signal has come to a job's number, work(job, piece) is called for each of its pieces, on any
  // thread, and behind the last of them the reply is that number. One step at a time; jobs and
  // pieces >= 1. What `work` throws is kept for finish(); the replies go on, so that no stream is
  // left waiting.
  std::uint32_t begin(int jobs, int pieces, std::function<void(int, int)> work);

  // After the signals of all jobs: returns when they are done, and throws what the first work to
  // fail threw.
  void finish();

  // Ends a step whose signals may never come: no thread waits for them any more, and streams that
  // wait for any of its replies go on. Returns when no thread works on it.
  void abandon();

 private:
  void lead();
  void serve();
  bool signalled(std::uint32_t number) const;  // waits; false: abandoned
  void keep_failure();
  void wait_until_idle();

  ThreadTeam team_;
  std::uint32_t* const signal_;
  std::uint32_t* const reply_;

  // Of the step, written while no thread works on one.
  std::function<void(int, int)> work_;
  std::uint64_t pieces_ = 1;
  std::uint64_t tickets_ = 0;  // jobs * pieces
  std::uint32_t first_ = 1;
  std::uint32_t after_ = 1;  // the number behind the last job's

  alignas(64) std::atomic<std::uint64_t> next_{0};  // ticket: job * pieces + piece
  alignas(64) std::atomic<std::uint64_t> done_{0};
  alignas(64) std::atomic<bool> abandoned_{false};
  std::atomic<bool> failed_{false};

  std::mutex mutex_;
  std::condition_variable changed_;
  bool busy_ = false;  // guarded, as are the next two
  bool stop_ = false;
  std::exception_ptr failure_;
  std::thread leader_;
};

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_HOST_WORKERS_H_
