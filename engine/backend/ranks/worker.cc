#include "engine/backend/ranks/worker.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "engine/backend/ranks/rank_device.h"
#include "engine/core/threads.h"

namespace servelab::ranks {
namespace {

constexpr int kLookForSignalMs = 100;
constexpr std::chrono::seconds kTimeToTell{2};

using Connections = std::array<std::unique_ptr<Connection>, kPurposes>;

std::uint64_t draw_number() {
  std::random_device device;
  return (static_cast<std::uint64_t>(device()) << 32) ^ device() ^
         static_cast<std::uint64_t>(::getpid());
}

// How a worker meets rank 0.
class Meeting {
 public:
  explicit Meeting(const WorkerSettings& settings) : settings_(settings) {}

  // Connects and says who this is; waits until rank 0 has met everybody.
  Connections run() {
    const Clock::time_point deadline = Clock::now() + settings_.patience;
    Hello hello;
    hello.identity = settings_.identity;
    hello.rank = settings_.rank;
    hello.ranks = settings_.ranks;
    hello.process = draw_number();
    hello.host = host_name();
    hello.pid = static_cast<std::int32_t>(::getpid());
    for (int i = 0; i < kPurposes; ++i) {
      hello.purpose = static_cast<Purpose>(i);
      auto& connection = connections_[static_cast<std::size_t>(i)];
      auto socket = connect_to(settings_.at, reach_of(settings_.secret), deadline,
                               [this] { look_for_refusal(); });
      connection = std::make_unique<Connection>(std::move(socket));
      try {
        prove_to(connection.get(), deadline);
        connection->send(static_cast<std::uint8_t>(Message::kHello), encode_hello(hello), deadline);
      } catch (const SpecError&) {
        connection.reset();
        look_for_refusal();  // of a connection before: that says more
        throw;
      }
    }
    // Rank 0 may have come last, and waits as long from then on.
    const Clock::time_point last = Clock::now() + settings_.patience + kTimeToTell;
    for (const auto& connection : connections_) {
      while (!has_word(*connection, kLookForSignalMs) && Clock::now() < last) check_stop();
      hear(connection.get(), last);
    }
    return std::move(connections_);
  }

 private:
  static bool has_word(const Connection& connection, int wait_ms) {
    pollfd one{connection.descriptor(), POLLIN, 0};
    return ::poll(&one, 1, wait_ms) > 0;
  }

  void check_stop() const {
    if (settings_.stop != nullptr && *settings_.stop != 0) throw SpecError("stopped");
  }

  // Both sides know the secret, or this throws.
  void prove_to(Connection* connection, Clock::time_point deadline) const {
    const RandomNumber theirs = take<RandomNumber>(connection, Message::kChallenge, deadline);
    const RandomNumber ours = draw_random_number();
    WireWriter message;
    message.bytes(ours);
    message.bytes(prove(settings_.secret, Prover::kWorker, theirs, ours));
    connection->send(static_cast<std::uint8_t>(Message::kWorkerProof), message, deadline);
    const auto proof = take<Proof>(connection, Message::kRank0Proof, deadline);
    if (same(proof, prove(settings_.secret, Prover::kRank0, theirs, ours))) return;
    throw SpecError("who listens at " + settings_.at.text() +
                    " does not know the ranks' secret: it is not our rank 0");
  }

  // A message of so many bytes and no others.
  template <class Bytes>
  Bytes take(Connection* connection, Message kind, Clock::time_point deadline) const {
    Bytes bytes;
    Frame frame;
    try {
      frame = connection->receive(deadline, kMostHelloBytes);
    } catch (const SpecError& problem) {
      const bool came = kind == Message::kRank0Proof;
      throw SpecError("rank 0 at " + settings_.at.text() + ": " + problem.what() +
                      (came ? "; has it the same secret (--ranks-secret)?" : ""));
    }
    if (frame.kind == static_cast<std::uint8_t>(Message::kRefusal)) {
      throw_failure("rank 0 refused", frame.message);
    }
    if (frame.kind != static_cast<std::uint8_t>(kind) || frame.message.size() != bytes.size()) {
      throw SpecError("at " + settings_.at.text() + " is something else than servelab's rank 0");
    }
    std::copy(frame.message.begin(), frame.message.end(), bytes.begin());
    return bytes;
  }

  // Rank 0 need not be there any more when it has refused one of the connections before.
  void look_for_refusal() const {
    check_stop();
    for (const auto& connection : connections_) {
      if (connection != nullptr && has_word(*connection, 0)) {
        hear(connection.get(), Clock::now() + settings_.patience);
      }
    }
  }

  void hear(Connection* connection, Clock::time_point deadline) const {
    Frame frame;
    try {
      frame = connection->receive(deadline, kMostHelloBytes);
    } catch (const SpecError& problem) {
      throw SpecError("rank 0 at " + settings_.at.text() + ": " + problem.what());
    }
    if (frame.kind == static_cast<std::uint8_t>(Message::kRefusal)) {
      throw_failure("rank 0 refused", frame.message);
    }
    if (frame.kind != static_cast<std::uint8_t>(Message::kWelcome)) {
      throw SpecError("at " + settings_.at.text() + " is something else than servelab's rank 0");
    }
  }

  const WorkerSettings& settings_;
  Connections connections_;
};

class Worker {
 public:
  Worker(const WorkerSettings& settings, Connections connections)
      : settings_(settings),
        connections_(std::move(connections)),
        device_(&settings.device, settings.patience) {}

  int run() {
    std::vector<std::thread> threads = start_threads(
        2, [this](int thread) { serve(thread == 0 ? Purpose::kSteps : Purpose::kLoads); },
        [this] { close(); });
    const int code = listen();
    // Rank 0 has closed its devices, or has failed; either way no more commands come.
    close();
    for (std::thread& thread : threads) thread.join();
    return code;
  }

 private:
  void close() {
    over_ = true;
    for (const auto& connection : connections_) ::shutdown(connection->descriptor(), SHUT_RDWR);
  }

  // Commands of one connection, until it ends.
  void serve(Purpose purpose) {
    Connection& connection = *connections_[static_cast<std::size_t>(purpose)];
    try {
      for (;;) {
        const Frame frame = connection.receive();
        if (purpose == Purpose::kSteps) {
          device_.serve_step(frame, &connection);
        } else {
          device_.serve_load(frame, &connection);
        }
      }
    } catch (const std::exception& problem) {
      lost(std::string("rank 0 at ") + settings_.at.text() + ": " + problem.what());
    }
  }

  // Rank 0's last word comes over the control connection, which may be read a moment later than
  // the others end: it says more.
  void lost(const std::string& text) {
    std::unique_lock lock(mutex_);
    heard_.wait_for(lock, std::chrono::seconds(1), [this] { return has_heard_; });
    if (over_ || has_heard_) return;
    has_heard_ = true;
    lock.unlock();
    settings_.on_failure(text);
  }

  void hear() {
    {
      const std::lock_guard lock(mutex_);
      has_heard_ = true;
    }
    heard_.notify_all();
  }

  // The control connection: rank 0's goodbye, or its end. Passes signals on.
  int listen() {
    Connection& control = *connections_[static_cast<std::size_t>(Purpose::kControl)];
    bool told = false;
    for (;;) {
      const int signal = settings_.stop == nullptr ? 0 : settings_.stop->load();
      try {
        if (signal != 0 && !std::exchange(told, true)) {
          WireWriter message;
          message.numbers(signal);
          control.send(static_cast<std::uint8_t>(Message::kSignal), message);
        }
        pollfd one{control.descriptor(), POLLIN, 0};
        if (::poll(&one, 1, kLookForSignalMs) <= 0) continue;
        const Frame frame = control.receive({}, kMostHelloBytes);
        if (frame.kind == static_cast<std::uint8_t>(Message::kGoodbye)) {
          const int code = WireReader(frame.message).get<int>();
          if (code < 0 || code > 255) damaged("an exit code is " + std::to_string(code));
          hear();
          return code;
        }
        if (frame.kind != static_cast<std::uint8_t>(Message::kAbort)) damaged("no goodbye");
        const std::string text = decode<FailureText>(frame.message).text;
        hear();
        settings_.on_failure("rank 0 ended the run: " + text);
        return 1;
      } catch (const SpecError& problem) {
        hear();
        settings_.on_failure("rank 0 at " + settings_.at.text() + ": " + problem.what());
        return 1;
      }
    }
  }

  const WorkerSettings& settings_;
  Connections connections_;
  RankDevice device_;
  std::atomic<bool> over_{false};
  std::mutex mutex_;
  std::condition_variable heard_;
  bool has_heard_ = false;  // guarded
};

}  // namespace

int serve_rank(const WorkerSettings& settings) {
  return Worker(settings, Meeting(settings).run()).run();
}

}  // namespace servelab::ranks
