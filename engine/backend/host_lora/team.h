// LoRA on the host, by workers beside an engine (CaraServe 4.2): each has a core of its own, and a
// request's L rows are shared by ceil(L / c) of them for each matrix, c rows being what one core is
// given at most. Workers are threads of this process or processes of their own, which share x and
// x A B with it. A worker that is lost, or does not answer, loses nothing: the caller computes its
// part, bit for bit the same, and another takes its place.
#ifndef SERVELAB_BACKEND_HOST_LORA_TEAM_H_
#define SERVELAB_BACKEND_HOST_LORA_TEAM_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "engine/backend/device/host_lora_plan.h"
#include "engine/backend/device/local_device.h"
#include "engine/backend/device/packed_adapter.h"
#include "engine/backend/host_lora/compute.h"
#include "engine/backend/host_lora/processes.h"
#include "engine/backend/host_lora/socket_messages.h"
#include "engine/serve/cost.h"

namespace servelab::host_lora {

struct TeamSettings {
  HostLoraPlan plan;          // its workers and cores resolved
  bool caller_helps = false;  // wait() computes a worker's part too, beside the plan's workers
  bool wakes = true;          // who signals wakes workers; false: a device, by the signal's word
  kernels::Isa isa = kernels::Isa::kReference;
  int most_jobs = 0;  // of a round
  int most_rows = 0;  // of x
  std::size_t x_row_bytes = 0;
  std::size_t out_row_bytes = 0;
  // Makes the memory of the board, x and results, where workers are threads; empty: plain memory.
  std::function<HostMemory(std::size_t)> memory;
};

// Rows of x with one adapter.
struct Group {
  const PackedAdapter* adapter = nullptr;
  int begin = 0;
  int count = 0;
};

class Team {
 public:
  // Throws SpecError where workers or their memory cannot be had.
  explicit Team(const TeamSettings& settings);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Where x and the results of a round lie, and adapters that it may name.
  std::byte* x() const { return x_; }
  const std::byte* out() const { return memory_.out; }
  const std::shared_ptr<AdapterStorage>& adapters() const { return adapters_; }
  // All that workers and engine share, and in it the word that a device signals by.
  std::span<std::byte> exchange() const { return exchange_; }
  std::uint32_t* signal_word() const;

  // Begins a round and returns the number of job 0; job i has that + i, wrapping around. One round
  // at a time; groups and jobs at least one.
  std::uint32_t begin(const Rows& rows, std::span<const Group> groups, std::span<const Job> jobs);
  // x of a job is there, and of all before it.
  void post(int job);
  // Returns when the job's signal has come and its results are there; false: abandoned.
  bool wait(int job);
  // The round's signals may never come: wait() returns, and workers leave it. Any thread.
  void abandon();
  // After the last wait(), or an abandoned one: returns when no worker works on the round. Throws
  // SpecError where one had no memory.
  void finish();

  // Since it was last asked.
  HostWork take_work();

 private:
  struct Participant {
    int worker = 0;
    std::uint32_t life = 0;  // of a process
    bool lost = false;
    std::shared_ptr<const Descriptor> socket;
    Reply reply;
  };

  void lay_out();
  void start_threads();
  void stop();
  void invite(int worker, int position, int of);
  bool is_process() const { return processes_ != nullptr; }
  bool await_signal(std::uint32_t number) const;
  bool await(Participant* worker, std::atomic<std::uint32_t>* word, std::uint32_t number);
  void lose(Participant* worker);
  void send(int job, int position, Participant* worker);
  bool receive(int job, int position, Participant* worker);
  int units_of(int job, int position) const;

  const TeamSettings settings_;
  std::unique_ptr<SharedMemory> shared_;          // of processes
  std::shared_ptr<SharedMemory> shared_weights_;  // of processes
  HostMemory own_;                                // of threads
  std::span<std::byte> exchange_;
  std::shared_ptr<AdapterStorage> adapters_;
  const kernels::Ops& ops_;
  Board* board_ = nullptr;
  Memory memory_;
  Job* jobs_ = nullptr;
  Piece* pieces_ = nullptr;
  std::byte* x_ = nullptr;
  std::unique_ptr<Processes> processes_;
  std::vector<std::thread> threads_;

  // Of the round.
  bool open_ = false;
  int callers_ = 0;  // position of the caller's own part: 0, where it helps
  std::vector<Participant> participants_;
  std::int64_t posted_at_ = 0;  // of the latest job, steady clock; 0: by a device
  std::int64_t sent_at_ = 0;    // when messages of it had gone
  Request request_;
  std::uint32_t number_ = 0;  // of the round
  std::uint32_t after_ = 1;   // the number behind the last job's
  HostWork work_;
};

}  // namespace servelab::host_lora

#endif  // SERVELAB_BACKEND_HOST_LORA_TEAM_H_
