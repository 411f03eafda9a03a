// LoRA workers as processes: begun, watched and begun again where one is lost, by a thread that
// lives as long as they may.
#ifndef SERVELAB_BACKEND_HOST_LORA_PROCESSES_H_
#define SERVELAB_BACKEND_HOST_LORA_PROCESSES_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/backend/device/host_lora_plan.h"
#include "engine/backend/device/shared_memory.h"
#include "engine/backend/host_lora/board.h"

namespace servelab::host_lora {

// An open file, closed with its last owner.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor();
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  const int number_;
};

class Processes {
 public:
  // Returns when all listen. `exchange` begins with the board, whose layout says what they are to
  // know. Throws MachineError where one does not start.
  Processes(const HostLoraPlan& plan, const SharedMemory& exchange, const SharedMemory& weights);
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  // Names the life of a worker that listens now; 0: it does not.
  std::uint32_t life(int worker) const;
  // Whether a worker is still in that life.
  bool lives(int worker, std::uint32_t life) const;
  // Ends that life and returns when it has ended. Another begins.
  void end(int worker, std::uint32_t life);
  // For messages, of a life; null where it has ended, or without messages.
  std::shared_ptr<const Descriptor> socket(int worker, std::uint32_t life) const;

 private:
  struct Worker {
    int pid = 0;  // 0: none
    std::shared_ptr<const Descriptor> lifeline;
    std::shared_ptr<const Descriptor> socket;
    int false_starts = 0;
  };

  void watch();
  void begin(int worker);  // mutex_ is held
  void mourn(int worker);
  std::string how_it_ended(int worker, int status) const;
  void stop();

  const HostLoraPlan plan_;
  const SharedMemory& exchange_;
  const SharedMemory& weights_;
  Board* const board_;
  std::unique_ptr<std::atomic<std::uint32_t>[]> lives_;  // even: ended
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Worker> workers_;  // guarded, as are the next
  std::string failure_;
  bool started_ = false;
  bool stopping_ = false;
  std::shared_ptr<const Descriptor> bell_;  // rung to stop
  std::shared_ptr<const Descriptor> bell_rope_;
  std::thread watcher_;
};

}  // namespace servelab::host_lora

#endif  // SERVELAB_BACKEND_HOST_LORA_PROCESSES_H_
