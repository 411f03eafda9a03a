// Who computes LoRA on the host, as a run has it.
#ifndef SERVELAB_BACKEND_DEVICE_HOST_LORA_PLAN_H_
#define SERVELAB_BACKEND_DEVICE_HOST_LORA_PLAN_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace servelab {

enum class HostLoraBy : std::uint8_t {
  kInline,     // the engine's own threads, as any other part of a step
  kThreads,    // threads of their own, beside them
  kProcesses,  // processes of their own (CaraServe 4.2)
};
inline constexpr std::array kHostLoraBy = {"inline", "threads", "processes"};

// How x and x A B come to processes and back.
enum class HostLoraTransport : std::uint8_t { kShared, kSockets };
inline constexpr std::array kHostLoraTransports = {"shared", "sockets"};

struct HostLoraPlan {
  HostLoraBy by = HostLoraBy::kInline;
  HostLoraTransport transport = HostLoraTransport::kShared;
  int workers = 0;            // threads or processes of each device
  int rows_per_worker = 8;    // of one adapter that one worker is given at most, c in CaraServe 4.2
  std::vector<int> cores;     // worker i keeps to cores[i % size]; empty: to none
  bool shares_cores = false;  // there are fewer cores than workers and threads
  std::string program = "/proc/self/exe";    // of processes: a servelab
  std::chrono::milliseconds patience{5000};  // with a process that does not answer
};

}  // namespace servelab

#endif  // SERVELAB_BACKEND_DEVICE_HOST_LORA_PLAN_H_
