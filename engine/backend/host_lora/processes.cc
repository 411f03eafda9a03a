#include "engine/backend/host_lora/processes.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <tuple>
#include <utility>

#include "engine/backend/host_lora/worker.h"
#include "engine/core/check.h"
#include "engine/core/threads.h"

extern char** environ;

namespace servelab::host_lora {
namespace {

constexpr int kMostFalseStarts = 3;  // in a row; then a worker stays lost
constexpr std::chrono::seconds kStartPatience{30};
constexpr std::chrono::milliseconds kStartLook{1};
constexpr int kFirstFree = 64;  // above what workers get their files as

using Owned = std::shared_ptr<const Descriptor>;

[[noreturn]] void fail(const std::string& what) {
  throw MachineError("runtime.host_lora: " + what + ": " + std::strerror(errno));
}

// This end and that of a worker.
std::pair<Owned, Owned> socket_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    fail("no socket to a LoRA worker");
  }
  return {std::make_shared<Descriptor>(ends[0]), std::make_shared<Descriptor>(ends[1])};
}

void limit_waits(int socket, std::chrono::milliseconds patience) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(patience);
  const std::chrono::microseconds rest = patience - seconds;
  const timeval limit{seconds.count(), rest.count()};
  for (const int side : {SO_SNDTIMEO, SO_RCVTIMEO}) {
    (void)::setsockopt(socket, SOL_SOCKET, side, &limit, sizeof limit);
  }
}

// What a process is begun with. Not by posix_spawn: a worker is to end with the engine from before
// its first instruction, even where somebody stops it there.
class Spawning {
 public:
  // By way of a number that no worker's file has.
  void give(int descriptor, int as) {
    const int copy = ::fcntl(descriptor, F_DUPFD_CLOEXEC, kFirstFree);
    if (copy < 0) fail("no file for a LoRA worker");
    copies_.push_back({std::make_shared<Descriptor>(copy), as});
    files_end_ = std::max(files_end_, as + 1);
  }
  // Its process, or 0 with errno.
  int begin(const std::string& program, const std::string& argument) {
    std::string name = "servelab";
    std::string verb = "lora-worker";
    std::string last = argument;
    const std::array<char*, 4> arguments = {name.data(), verb.data(), last.data(), nullptr};
    sigset_t all;
    sigset_t usual;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &usual);  // no handler runs in memory that is shared
    volatile int problem = 0;
    const pid_t pid = ::vfork();
    if (pid == 0) {
      problem = become(program.c_str(), arguments.data(), usual);
      ::_exit(1);
    }
    if (pid < 0) problem = errno;
    ::pthread_sigmask(SIG_SETMASK, &usual, nullptr);
    if (problem == 0) return pid;
    if (pid > 0) ::waitpid(pid, nullptr, 0);
    errno = problem;
    return 0;
  }

 private:
  struct Copy {
    Owned file;
    int as;
  };

  // In the new process, with the engine's memory: only what a signal handler may do. Returns errno
  // where it cannot.
  int become(const char* program, char* const* arguments, const sigset_t& signals) const {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // with the thread that begins it, however that ends
    // A group of its own: what a terminal sends to the engine is the engine's affair.
    if (::setpgid(0, 0) != 0) return errno;
    for (const Copy& copy : copies_) {
      if (::dup2(copy.file->number(), copy.as) < 0) return errno;
    }
    if (::close_range(static_cast<unsigned>(files_end_), ~0U, 0) != 0) return errno;
    ::sigprocmask(SIG_SETMASK, &signals, nullptr);
    ::execve(program, arguments, environ);
    return errno;
  }

  std::vector<Copy> copies_;
  int files_end_ = 0;
};

}  // namespace

Descriptor::~Descriptor() { ::close(number_); }

Processes::Processes(const HostLoraPlan& plan, const SharedMemory& exchange,
                     const SharedMemory& weights)
    : plan_(plan),
      exchange_(exchange),
      weights_(weights),
      board_(reinterpret_cast<Board*>(exchange.data())),
      lives_(
          std::make_unique<std::atomic<std::uint32_t>[]>(static_cast<std::size_t>(plan.workers))),
      workers_(static_cast<std::size_t>(plan.workers)) {
  std::tie(bell_, bell_rope_) = socket_pair();
  watcher_ = std::move(start_threads(
                           1, [this](int) { watch(); }, [] {})
                           .front());
  std::unique_lock lock(mutex_);
  const auto deadline = std::chrono::steady_clock::now() + kStartPatience;
  for (int worker = 0; worker < plan.workers && failure_.empty();) {
    if (board_->lines[worker].ready.load() != 0) {
      ++worker;
    } else if (std::chrono::steady_clock::now() > deadline) {
      failure_ = "LoRA worker " + std::to_string(worker) + " of " + std::to_string(plan.workers) +
                 " did not start within " + std::to_string(kStartPatience.count()) + " s";
    } else {
      changed_.wait_for(lock, kStartLook);
    }
  }
  started_ = true;
  if (failure_.empty()) return;
  const std::string why = failure_;
  lock.unlock();
  stop();
  throw MachineError("runtime.host_lora: " + why);
}

Processes::~Processes() { stop(); }

void Processes::stop() {
  if (!watcher_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  bell_rope_.reset();
  watcher_.join();
}

std::uint32_t Processes::life(int worker) const {
  const std::uint32_t life = lives_[static_cast<std::size_t>(worker)].load();
  return life % 2 == 1 && board_->lines[worker].ready.load() != 0 ? life : 0;
}

bool Processes::lives(int worker, std::uint32_t life) const {
  return lives_[static_cast<std::size_t>(worker)].load(std::memory_order_acquire) == life;
}

void Processes::end(int worker, std::uint32_t life) {
  std::unique_lock lock(mutex_);
  const int pid = workers_[static_cast<std::size_t>(worker)].pid;
  if (lives(worker, life) && pid > 0) ::kill(pid, SIGKILL);
  changed_.wait(lock, [&] { return !lives(worker, life); });
}

Owned Processes::socket(int worker, std::uint32_t life) const {
  const std::lock_guard lock(mutex_);
  return lives(worker, life) ? workers_[static_cast<std::size_t>(worker)].socket : nullptr;
}

// --- the watcher ---

void Processes::watch() {
  const auto count = static_cast<int>(workers_.size());
  std::unique_lock lock(mutex_);
  for (int worker = 0; worker < count; ++worker) begin(worker);
  while (!stopping_) {
    std::vector<pollfd> looked_at = {{bell_->number(), POLLIN, 0}};
    for (const Worker& worker : workers_) {
      looked_at.push_back({worker.pid == 0 ? -1 : worker.lifeline->number(), POLLIN, 0});
    }
    lock.unlock();
    ::poll(looked_at.data(), looked_at.size(), -1);
    lock.lock();
    if (stopping_) break;
    for (int worker = 0; worker < count; ++worker) {
      if (looked_at[static_cast<std::size_t>(worker) + 1].revents != 0) mourn(worker);
    }
  }
  for (int worker = 0; worker < count; ++worker) {
    if (workers_[static_cast<std::size_t>(worker)].pid != 0) mourn(worker);
  }
}

void Processes::begin(int worker) {
  Worker& self = workers_[static_cast<std::size_t>(worker)];
  board_->lines[worker].ready.store(0);
  board_->lines[worker].asleep.store(0);
  try {
    const auto [lifeline, other_end] = socket_pair();
    Spawning spawning;
    spawning.give(exchange_.descriptor(), kExchangeDescriptor);
    spawning.give(weights_.descriptor(), kWeightsDescriptor);
    spawning.give(other_end->number(), kLifelineDescriptor);
    Owned socket;
    Owned its_socket;
    if (board_->layout.sockets) {
      std::tie(socket, its_socket) = socket_pair();
      limit_waits(socket->number(), plan_.patience);
      spawning.give(its_socket->number(), kSocketDescriptor);
    }
    const int pid = spawning.begin(plan_.program, std::to_string(worker));
    if (pid == 0) fail("LoRA worker " + std::to_string(worker) + " could not be started");
    self.pid = pid;
    self.lifeline = lifeline;
    self.socket = socket;
    lives_[static_cast<std::size_t>(worker)].fetch_add(1);
  } catch (const SpecError& problem) {
    if (failure_.empty()) failure_ = problem.what();
  }
  changed_.notify_all();
}

// One has ended, or is to. Another takes its place, unless none starts.
void Processes::mourn(int worker) {
  Worker& self = workers_[static_cast<std::size_t>(worker)];
  ::kill(self.pid, SIGKILL);  // the rest of it, where only its lifeline has ended
  int status = 0;
  while (::waitpid(self.pid, &status, 0) < 0 && errno == EINTR) {
  }
  self.pid = 0;
  const bool was_ready = board_->lines[worker].ready.exchange(0) != 0;
  lives_[static_cast<std::size_t>(worker)].fetch_add(1);
  // Somebody else's doing is none of its own.
  const bool by_itself = !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL;
  self.false_starts = was_ready ? 0 : self.false_starts + (by_itself ? 1 : 0);
  if (!started_ && !stopping_ && by_itself && failure_.empty()) {
    failure_ = how_it_ended(worker, status);
  }
  changed_.notify_all();
  if (!stopping_ && failure_.empty() && self.false_starts < kMostFalseStarts) begin(worker);
}

std::string Processes::how_it_ended(int worker, int status) const {
  std::string text = "LoRA worker " + std::to_string(worker) + " of " +
                     std::to_string(workers_.size()) + " did not start: ";
  if (WIFSIGNALED(status)) return text + "signal " + std::to_string(WTERMSIG(status));
  return text + "exit code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace servelab::host_lora
