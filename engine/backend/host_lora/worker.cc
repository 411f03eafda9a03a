#include "engine/backend/host_lora/worker.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <new>
#include <vector>

#include "engine/backend/device/shared_memory.h"
#include "engine/backend/device/thread_team.h"
#include "engine/backend/host_lora/futex.h"
#include "engine/backend/host_lora/socket_messages.h"
#include "engine/core/check.h"

namespace servelab::host_lora {
namespace {

constexpr std::chrono::milliseconds kLongestSleep{100};
constexpr std::chrono::microseconds kNap{20};  // where nobody wakes

std::int64_t clock_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

// One worker's end of a board.
class Listener {
 public:
  Listener(const kernels::Ops& ops, const Memory& memory, int worker,
           const std::function<bool()>& orphaned)
      : ops_(ops),
        memory_(memory),
        board_(*memory.board),
        line_(board_.lines[worker]),
        orphaned_(orphaned) {}

  void run() {
    std::uint32_t seen = line_.round.load(std::memory_order_acquire);
    line_.ready.store(1, std::memory_order_seq_cst);
    wake_engine();
    while (wait(&line_.round, kLongestSleep, [&] { return line_.round.load() != seen; })) {
      seen = line_.round.load(std::memory_order_acquire);
      work();
      line_.left.store(seen, std::memory_order_seq_cst);
      wake_engine();
    }
  }

 private:
  // Looks until `there` says so, then sleeps on the word; false: it is over.
  template <class There>
  bool wait(std::atomic<std::uint32_t>* word, std::chrono::nanoseconds longest, There there) {
    for (int looks = 0;; ++looks) {
      const std::uint32_t value = word->load(std::memory_order_acquire);
      if (there()) return true;
      if (board_.stop.load(std::memory_order_relaxed) != 0) return false;
      if (looks < board_.looks) {
        relax();
        continue;
      }
      line_.asleep.store(1, std::memory_order_seq_cst);
      if (!there() && board_.stop.load(std::memory_order_seq_cst) == 0) {
        sleep_on(word, value, longest);
      }
      line_.asleep.store(0, std::memory_order_relaxed);
      if (longest == kLongestSleep && orphaned_()) return false;
    }
  }

  void work() {
    for (int job = 0; job < board_.round.jobs; ++job) {
      const std::uint32_t number = board_.round.first + static_cast<std::uint32_t>(job);
      const auto come = [&] {
        return static_cast<std::int32_t>(board_.signal.load(std::memory_order_acquire) - number) >=
                   0 ||
               board_.abandoned.load(std::memory_order_acquire) != 0;
      };
      const auto longest =
          board_.wakes ? std::chrono::nanoseconds(kLongestSleep) : std::chrono::nanoseconds(kNap);
      if (!wait(&board_.signal, longest, come)) return;
      if (board_.abandoned.load(std::memory_order_acquire) != 0) return;
      const std::int64_t begin = clock_ns();
      try {
        compute_units(ops_, memory_, job, line_.position, line_.workers);
      } catch (const std::bad_alloc&) {
        line_.failed.store(1, std::memory_order_relaxed);
      }
      line_.done_at = clock_ns();
      line_.compute_ns = line_.done_at - begin;
      line_.done.store(number, std::memory_order_seq_cst);
      wake_engine();
    }
  }

  void wake_engine() {
    if (line_.listening.load(std::memory_order_seq_cst) == 0) return;
    wake_all(&line_.done);
    wake_all(&line_.left);
  }

  const kernels::Ops& ops_;
  const Memory& memory_;
  Board& board_;
  Line& line_;
  const std::function<bool()>& orphaned_;
};

// Messages until the engine closes its end.
void serve_socket(const kernels::Ops& ops, const Memory& memory, int worker) {
  Line& line = memory.board->lines[worker];
  line.ready.store(1, std::memory_order_seq_cst);
  Request request;
  Reply reply;
  while (receive(kSocketDescriptor, &request)) {
    const std::int64_t begin = clock_ns();
    const Rows& rows = request.head.rows;
    reply.rows.resize(request.result_bytes());
    std::size_t x = 0;
    std::size_t out = 0;
    for (const Unit& unit : request.units) {
      const Job& job = request.head.job;
      const Target& target = job.target[static_cast<std::size_t>(unit.target)];
      const kernels::LoraPair pair = find(memory, unit.adapter, job.layer, target.layer_kind);
      compute(ops, rows, target, pair.rank == 0 ? nullptr : &pair, request.rows.data() + x, job.k,
              job.k, unit.count, reply.rows.data() + out, target.columns);
      x += request.x_bytes(unit);
      out += request.result_bytes(unit);
    }
    const std::int64_t end = clock_ns();
    reply.head = {request.head.number, end - begin, end, reply.rows.size()};
    if (!send(kSocketDescriptor, reply)) return;
  }
}

// Nothing comes over it: it ends with the engine.
bool has_ended(int descriptor) {
  pollfd one{descriptor, POLLIN, 0};
  return ::poll(&one, 1, 0) > 0;
}

}  // namespace

void serve_board(const kernels::Ops& ops, const Memory& memory, int worker,
                 const std::function<bool()>& orphaned) {
  Listener(ops, memory, worker, orphaned).run();
}

int serve_process(int worker) {
  ::prctl(PR_SET_NAME, "servelab-lora");
  try {
    struct stat exchanged {};
    if (::fstat(kExchangeDescriptor, &exchanged) != 0 || exchanged.st_size <= 0 || worker < 0 ||
        worker >= kMostWorkers) {
      throw SpecError("lora-worker is begun by `servelab run` alone");
    }
    const SharedMemory exchange(kExchangeDescriptor, static_cast<std::size_t>(exchanged.st_size),
                                SharedMemory::Access::kWrite);
    Memory memory;
    memory.board = reinterpret_cast<Board*>(exchange.data());
    const Layout& layout = memory.board->layout;
    if (static_cast<std::int64_t>(::getppid()) != layout.engine) return 1;  // it was too late
    pin_to_core(layout.core[worker]);
    const SharedMemory weights(kWeightsDescriptor, layout.weights_bytes,
                               SharedMemory::Access::kRead);
    memory.jobs = reinterpret_cast<const Job*>(exchange.data() + layout.jobs_at);
    memory.pieces = reinterpret_cast<const Piece*>(exchange.data() + layout.pieces_at);
    memory.x = exchange.data() + layout.x_at;
    memory.out = exchange.data() + layout.out_at;
    memory.weights = weights.data();
    const kernels::Ops& ops = kernels::ops(static_cast<kernels::Isa>(layout.isa));
    if (layout.sockets) {
      serve_socket(ops, memory, worker);
    } else {
      serve_board(ops, memory, worker, [] { return has_ended(kLifelineDescriptor); });
    }
    return 0;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "servelab: error: LoRA worker %d: %s\n", worker, problem.what());
    return 1;
  }
}

}  // namespace servelab::host_lora
