// A fixed team of threads that runs one function at a time together. The caller of run() is member
// 0; the others wait, first spinning (the next step usually comes at once), then asleep.
#ifndef SERVELAB_BACKEND_DEVICE_THREAD_TEAM_H_
#define SERVELAB_BACKEND_DEVICE_THREAD_TEAM_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace servelab {

class ThreadTeam {
 public:
  // `size` >= 1 members. Member i > 0 is pinned to cores[i % cores.size()]; empty: not pinned.
  // MachineError where there is no room for so many threads.
  ThreadTeam(int size, std::vector<int> cores);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return size_; }

  // Pins the calling thread to member 0's core.
  void pin_caller() const;

  // Calls work(member) on every member, on one caller at a time; returns when all have. `work` may
  // not throw.
  void run(const std::function<void(int)>& work);

  // Inside run(): returns when every member has come here.
  void barrier();

 private:
  void serve(int member);
  void stop();

  const int size_;
  const int spins_;  // none where members share cores
  const std::vector<int> cores_;
  std::vector<std::thread> threads_;
  const std::function<void(int)>* work_ = nullptr;
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<std::uint32_t> round_{0};   // raised to start a run
  alignas(64) std::atomic<std::int32_t> busy_{0};     // members other than 0 still in it
  alignas(64) std::atomic<std::int32_t> arrived_{0};  // at the barrier
  alignas(64) std::atomic<std::uint32_t> passed_{0};  // barriers so far
};

// The cores that this process may use, in order.
std::vector<int> usable_cores();
// The calling thread keeps to it; -1: any.
void pin_to_core(int core);

}  // namespace servelab

#endif  // SERVELAB_BACKEND_DEVICE_THREAD_TEAM_H_
