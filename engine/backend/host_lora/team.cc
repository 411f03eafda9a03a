#include "engine/backend/host_lora/team.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "engine/backend/device/buffer.h"
#include "engine/backend/device/thread_team.h"
#include "engine/backend/host_lora/futex.h"
#include "engine/backend/host_lora/worker.h"
#include "engine/core/check.h"
#include "engine/core/threads.h"

namespace servelab::host_lora {
namespace {

using Clock = std::chrono::steady_clock;

// Looks before sleeping: some tenths of a millisecond, more than there is between two matrices.
constexpr int kLooks = 10'000;
constexpr std::chrono::milliseconds kLookForLoss{2};
constexpr std::chrono::microseconds kNap{20};  // where nobody wakes the caller
constexpr std::size_t kPage = 4096;

std::size_t pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

std::int64_t clock_ns() { return Clock::now().time_since_epoch().count(); }

bool reached(std::uint32_t word, std::uint32_t number) {
  return static_cast<std::int32_t>(word - number) >= 0;
}

HostMemory plain_memory(std::size_t bytes) {
  auto buffer = std::make_shared<Buffer>(bytes, "what LoRA workers read and write");
  return HostMemory(buffer->data(), [buffer](std::byte*) {});
}

}  // namespace

Team::Team(const TeamSettings& settings)
    : settings_(settings), ops_(kernels::ops(settings.isa)), callers_(settings.caller_helps) {
  SL_CHECK(settings.plan.workers + callers_ >= 1 && settings.plan.workers <= kMostWorkers,
           "a team of LoRA workers has 1 to 256 of them");
  SL_CHECK(settings.plan.transport == HostLoraTransport::kShared ||
               (settings.plan.by == HostLoraBy::kProcesses && settings.wakes),
           "sockets go to processes, from the engine");
  lay_out();
  if (settings.plan.by == HostLoraBy::kProcesses) {
    processes_ = std::make_unique<Processes>(settings.plan, *shared_, *shared_weights_);
  } else {
    start_threads();
  }
}

Team::~Team() {
  stop();
  for (std::thread& thread : threads_) thread.join();
}

void Team::stop() {
  abandon();  // a round that nobody has finished
  board_->stop.store(1);
  for (int worker = 0; worker < settings_.plan.workers; ++worker) {
    wake_all(&board_->lines[worker].round);
  }
  wake_all(&board_->signal);
}

// Board, jobs, pieces, x and results, one behind the other.
void Team::lay_out() {
  const HostLoraPlan& plan = settings_.plan;
  const auto rows = static_cast<std::size_t>(settings_.most_rows);
  Layout layout;
  layout.jobs_at = pages(sizeof(Board));
  layout.pieces_at =
      layout.jobs_at + pages(static_cast<std::size_t>(settings_.most_jobs) * sizeof(Job));
  layout.x_at = layout.pieces_at + pages(rows * sizeof(Piece));
  layout.out_at = layout.x_at + pages(rows * settings_.x_row_bytes);
  const std::size_t bytes = layout.out_at + pages(rows * settings_.out_row_bytes);
  if (plan.by == HostLoraBy::kProcesses) {
    shared_ = std::make_unique<SharedMemory>(bytes, "what LoRA workers read and write");
    shared_->grow(bytes);
    shared_weights_ = std::make_shared<SharedMemory>(static_cast<std::size_t>(machine_memory()),
                                                     "adapters of LoRA workers");
    adapters_ = std::make_shared<AdapterStorage>(shared_weights_);
    exchange_ = {shared_->data(), bytes};
    layout.weights_bytes = shared_weights_->most();
    memory_.weights = shared_weights_->data();
  } else {
    own_ = settings_.memory ? settings_.memory(bytes) : plain_memory(bytes);
    exchange_ = {own_.get(), bytes};
    adapters_ = std::make_shared<AdapterStorage>();
  }
  board_ = new (exchange_.data()) Board;
  board_->weights = reinterpret_cast<std::uintptr_t>(memory_.weights);
  board_->wakes = settings_.wakes;
  board_->looks = plan.shares_cores ? 0 : kLooks;
  layout.engine = ::getpid();
  layout.isa = static_cast<std::int32_t>(settings_.isa);
  layout.sockets = plan.transport == HostLoraTransport::kSockets;
  for (int worker = 0; worker < kMostWorkers; ++worker) {
    layout.core[worker] =
        plan.cores.empty() ? -1 : plan.cores[static_cast<std::size_t>(worker) % plan.cores.size()];
  }
  board_->layout = layout;
  jobs_ = reinterpret_cast<Job*>(exchange_.data() + layout.jobs_at);
  pieces_ = reinterpret_cast<Piece*>(exchange_.data() + layout.pieces_at);
  x_ = exchange_.data() + layout.x_at;
  memory_.board = board_;
  memory_.jobs = jobs_;
  memory_.pieces = pieces_;
  memory_.x = x_;
  memory_.out = exchange_.data() + layout.out_at;
}

void Team::start_threads() {
  const auto work = [this](int worker) {
    pin_to_core(board_->layout.core[worker]);
    serve_board(ops_, memory_, worker, [] { return false; });
  };
  threads_ = servelab::start_threads(settings_.plan.workers, work, [this] { stop(); });
  for (int worker = 0; worker < settings_.plan.workers; ++worker) {
    while (board_->lines[worker].ready.load() == 0) std::this_thread::yield();
  }
}

std::uint32_t* Team::signal_word() const {
  return reinterpret_cast<std::uint32_t*>(&board_->signal);
}

// --- a round ---

std::uint32_t Team::begin(const Rows& rows, std::span<const Group> groups,
                          std::span<const Job> jobs) {
  SL_CHECK(!open_ && !groups.empty() && !jobs.empty(), "one round of LoRA on the host at a time");
  SL_CHECK(static_cast<int>(jobs.size()) <= settings_.most_jobs, "more jobs than a round has");
  int pieces = 0;
  for (const Group& group : groups) {
    const int c = settings_.plan.rows_per_worker;
    const int cores = (group.count + c - 1) / c;
    for (int i = 0; i < cores; ++i) {
      const int begin = group.count * i / cores;
      const int end = group.count * (i + 1) / cores;
      const auto* const table = reinterpret_cast<const std::byte*>(group.adapter->table());
      pieces_[pieces++] = {reinterpret_cast<std::uintptr_t>(table) -
                               reinterpret_cast<std::uintptr_t>(memory_.weights),
                           group.begin + begin, end - begin};
    }
  }
  std::copy(jobs.begin(), jobs.end(), jobs_);
  board_->round = {rows, after_, static_cast<std::int32_t>(jobs.size()), pieces};
  board_->abandoned.store(0);
  posted_at_ = sent_at_ = 0;  // where a device signals, nobody knows when
  after_ += static_cast<std::uint32_t>(jobs.size());
  ++number_;
  open_ = true;
  participants_.clear();
  for (int worker = 0; worker < settings_.plan.workers; ++worker) {
    const std::uint32_t life = is_process() ? processes_->life(worker) : 1;
    if (life == 0) continue;
    Participant& added = participants_.emplace_back();
    added.worker = worker;
    added.life = life;
    if (board_->layout.sockets) added.socket = processes_->socket(worker, life);
    added.lost = board_->layout.sockets && added.socket == nullptr;
  }
  // Without any worker the caller computes all of it.
  if (participants_.empty()) callers_ = 1;
  const int of = static_cast<int>(participants_.size()) + callers_;
  int position = callers_;
  for (const Participant& worker : participants_) invite(worker.worker, position++, of);
  return board_->round.first;
}

void Team::invite(int worker, int position, int of) {
  Line& line = board_->lines[worker];
  line.position = position;
  line.workers = of;
  line.failed.store(0);
  line.done.store(board_->round.first - 1);
  line.round.store(number_, std::memory_order_seq_cst);
  if (line.asleep.load(std::memory_order_seq_cst) != 0) wake_all(&line.round);
}

int Team::units_of(int job, int position) const {
  const int workers = static_cast<int>(participants_.size()) + callers_;
  const int units = board_->round.pieces * jobs_[job].targets;
  return position < units ? (units - position + workers - 1) / workers : 0;
}

void Team::post(int job) {
  posted_at_ = clock_ns();
  if (board_->layout.sockets) {
    int position = callers_;
    for (Participant& worker : participants_) send(job, position++, &worker);
  }
  sent_at_ = clock_ns();
  board_->signal.store(board_->round.first + static_cast<std::uint32_t>(job),
                       std::memory_order_seq_cst);
  if (board_->layout.sockets) return;
  const bool any_asleep =
      std::any_of(participants_.begin(), participants_.end(), [this](const Participant& worker) {
        return board_->lines[worker.worker].asleep.load(std::memory_order_seq_cst) != 0;
      });
  if (any_asleep) wake_all(&board_->signal);
}

bool Team::await_signal(std::uint32_t number) const {
  for (int looks = 0;; ++looks) {
    if (board_->abandoned.load(std::memory_order_acquire) != 0) return false;
    if (reached(board_->signal.load(std::memory_order_acquire), number)) return true;
    if (looks < board_->looks) {
      relax();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
}

// Until a word of its line has come to a number; false: the worker is lost, or the round abandoned.
bool Team::await(Participant* worker, std::atomic<std::uint32_t>* word, std::uint32_t number) {
  Line& line = board_->lines[worker->worker];
  const Clock::time_point begin = Clock::now();
  for (int looks = 0;; ++looks) {
    const std::uint32_t seen = word->load(std::memory_order_acquire);
    if (reached(seen, number)) return true;
    if (looks < board_->looks) {
      relax();
      continue;
    }
    if (word == &line.done && board_->abandoned.load(std::memory_order_acquire) != 0) return false;
    if (is_process()) {
      if (!processes_->lives(worker->worker, worker->life)) {
        if (reached(word->load(std::memory_order_acquire), number)) return true;
        lose(worker);
        return false;
      }
      if (Clock::now() - begin > settings_.plan.patience) {
        processes_->end(worker->worker, worker->life);
        continue;
      }
    }
    line.listening.store(1, std::memory_order_seq_cst);
    if (word->load(std::memory_order_seq_cst) == seen) sleep_on(word, seen, kLookForLoss);
    line.listening.store(0, std::memory_order_relaxed);
  }
}

void Team::lose(Participant* worker) {
  if (worker->lost) return;
  worker->lost = true;
  ++work_.lost;
}

bool Team::wait(int job) {
  const std::uint32_t number = board_->round.first + static_cast<std::uint32_t>(job);
  if (!await_signal(number)) return false;
  const int of = static_cast<int>(participants_.size()) + callers_;
  std::int64_t compute = 0;
  std::int64_t done_at = sent_at_;  // as if the caller had done nothing but wait
  if (callers_ > 0) compute_units(ops_, memory_, job, 0, of);
  int position = callers_;
  for (Participant& worker : participants_) {
    const Line& line = board_->lines[worker.worker];
    const std::int64_t begin = clock_ns();
    const bool came =
        !worker.lost &&
        (board_->layout.sockets ? receive(job, position, &worker)
                                : await(&worker, &board_->lines[worker.worker].done, number));
    if (came && board_->layout.sockets) {
      const Reply::Head& reply = worker.reply.head;
      compute = std::max(compute, reply.compute_ns);
      done_at =
          std::max(done_at, reply.computed_at) + clock_ns() - std::max(begin, reply.computed_at);
    } else if (came) {
      compute = std::max(compute, line.compute_ns);
      done_at = std::max(done_at, line.done_at);
    } else if (!worker.lost) {
      return false;
    } else {
      work_.recomputed += units_of(job, position);
      compute_units(ops_, memory_, job, position, of);
    }
    ++position;
  }
  work_.compute += compute;
  if (posted_at_ == 0) return true;
  work_.data += std::max<std::int64_t>(0, done_at - posted_at_ - compute);
  return true;
}

void Team::abandon() {
  board_->abandoned.store(1, std::memory_order_seq_cst);
  wake_all(&board_->signal);
}

void Team::finish() {
  bool failed = false;
  const bool abandoned = board_->abandoned.load() != 0;
  for (Participant& worker : participants_) {
    if (worker.lost) continue;
    Line& line = board_->lines[worker.worker];
    if (!board_->layout.sockets) {
      await(&worker, &line.left, number_);
    } else if (abandoned) {  // a reply that nobody has read would be taken for the next round's
      processes_->end(worker.worker, worker.life);
    }
    failed = failed || line.failed.load() != 0;
  }
  open_ = false;
  callers_ = settings_.caller_helps ? 1 : 0;
  if (failed) throw SpecError("out of memory: LoRA on the host has none for its rows");
}

HostWork Team::take_work() { return std::exchange(work_, {}); }

// --- sockets ---

void Team::send(int job, int position, Participant* worker) {
  if (worker->lost) return;
  const int of = static_cast<int>(participants_.size()) + callers_;
  const Round& round = board_->round;
  request_.head = {round.first + static_cast<std::uint32_t>(job), 0, 0, round.rows, jobs_[job]};
  request_.units.clear();
  request_.rows.clear();
  const Job& own = jobs_[job];
  const std::size_t element = kernels::bytes_of(round.rows.x_type);
  const auto stride =
      static_cast<std::size_t>(round.rows.ldx > 0 ? round.rows.ldx : own.k) * element;
  const auto row_bytes = static_cast<std::size_t>(own.k) * element;
  for (int unit = position; unit < round.pieces * own.targets; unit += of) {
    const Piece& piece = pieces_[unit / own.targets];
    request_.units.push_back({piece.adapter, unit % own.targets, piece.count});
    for (int row = 0; row < piece.count; ++row) {
      const std::byte* const x = x_ + static_cast<std::size_t>(piece.begin + row) * stride;
      request_.rows.insert(request_.rows.end(), x, x + row_bytes);
    }
  }
  request_.head.units = static_cast<std::uint32_t>(request_.units.size());
  request_.head.bytes = request_.rows.size();
  if (host_lora::send(worker->socket->number(), request_)) return;
  processes_->end(worker->worker, worker->life);
  lose(worker);
}

bool Team::receive(int job, int position, Participant* worker) {
  if (!host_lora::receive(worker->socket->number(), &worker->reply)) {
    processes_->end(worker->worker, worker->life);
    lose(worker);
    return false;
  }
  const int of = static_cast<int>(participants_.size()) + callers_;
  const Round& round = board_->round;
  const Job& own = jobs_[job];
  const std::size_t element = kernels::bytes_of(round.rows.out_type);
  const auto stride =
      static_cast<std::size_t>(round.rows.ldo > 0 ? round.rows.ldo : own.n) * element;
  const std::byte* from = worker->reply.rows.data();
  for (int unit = position; unit < round.pieces * own.targets; unit += of) {
    const Piece& piece = pieces_[unit / own.targets];
    const Target& target = own.target[static_cast<std::size_t>(unit % own.targets)];
    const auto bytes = static_cast<std::size_t>(target.columns) * element;
    for (int row = 0; row < piece.count; ++row, from += bytes) {
      std::memcpy(memory_.out + static_cast<std::size_t>(piece.begin + row) * stride +
                      static_cast<std::size_t>(target.column) * element,
                  from, bytes);
    }
  }
  return true;
}

}  // namespace servelab::host_lora
