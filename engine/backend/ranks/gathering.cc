#include "engine/backend/ranks/gathering.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <list>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace servelab::ranks {
namespace {

constexpr std::chrono::seconds kTimeForHello{5};  // and the proof before it
constexpr std::size_t kMostStrangers = 256;       // connections that have not said who they are
constexpr std::chrono::seconds kTimeToTell{2};
constexpr std::chrono::seconds kTimeToRefuse{5};  // those who come after one who does not belong
constexpr std::chrono::milliseconds kLookForSignal{100};

constexpr std::size_t kWorkerProofBytes = sizeof(RandomNumber) + sizeof(Proof);

// Somebody who has connected and not said all of the hello.
struct Stranger {
  std::unique_ptr<Connection> connection;
  Clock::time_point until;
  RandomNumber challenge;
  bool proven = false;
  std::vector<std::byte> heard = {};
};

struct Arrival {
  Hello hello;
  std::array<std::unique_ptr<Connection>, kPurposes> connections;
  bool complete() const {
    for (const auto& each : connections) {
      if (each == nullptr) return false;
    }
    return true;
  }
};

// Somebody of ours who does not belong.
class Misfit : public SpecError {
 public:
  using SpecError::SpecError;
};

class Gathering {
 public:
  explicit Gathering(const GroupSettings& settings)
      : settings_(settings),
        listener_(listen_at(settings.at, reach_of(settings.secret))),
        deadline_(Clock::now() + settings.patience) {}

  std::vector<std::unique_ptr<Peer>> run() {
    try {
      while (!complete()) {
        if (is_stopped()) throw SpecError("stopped");
        if (Clock::now() >= deadline_) throw SpecError(who_is_missing());
        wait(deadline_);
        if (!misfit_.empty()) throw Misfit(misfit_);
      }
      return welcome();
    } catch (const Misfit& problem) {
      refuse_all(problem.what());
      const auto until = std::min(deadline_, Clock::now() + kTimeToRefuse);
      while (!all_refused() && Clock::now() < until && !is_stopped()) wait(until);
      throw;
    } catch (const SpecError& problem) {
      refuse_all(problem.what());
      throw;
    }
  }

 private:
  bool is_stopped() const { return settings_.stop != nullptr && *settings_.stop != 0; }

  void refuse_all(const std::string& why) {
    refusal_ = why;
    for (auto& [rank, arrival] : arrivals_) {
      refused_.insert(rank);
      for (auto& each : arrival.connections) refuse(each.get(), why);
    }
  }
  bool all_refused() const {
    return refused_.size() + 1 >= static_cast<std::size_t>(settings_.ranks);
  }
  static void refuse(Connection* connection, const std::string& why) {
    tell(connection, Message::kRefusal, encode(FailureText{Failure::kGroup, why}));
  }

  bool complete() const {
    if (arrivals_.size() + 1 < static_cast<std::size_t>(settings_.ranks)) return false;
    for (const auto& [rank, arrival] : arrivals_) {
      if (!arrival.complete()) return false;
    }
    return true;
  }

  static void tell(Connection* to, Message kind, const WireWriter& text) {
    try {
      if (to != nullptr)
        to->send(static_cast<std::uint8_t>(kind), text, Clock::now() + kTimeToTell);
    } catch (const SpecError&) {  // gone: nothing to tell
    }
  }

  std::vector<std::unique_ptr<Peer>> welcome() {
    std::vector<std::unique_ptr<Peer>> peers;
    for (auto& [rank, arrival] : arrivals_) {
      for (auto& each : arrival.connections) tell(each.get(), Message::kWelcome, {});
      peers.push_back(
          std::make_unique<Peer>(std::move(arrival.hello), std::move(arrival.connections)));
    }
    return peers;
  }

  // Until somebody has come or said something, or a little later.
  void wait(Clock::time_point deadline) {
    const Clock::time_point now = Clock::now();
    Clock::time_point until = std::min(deadline, now + kLookForSignal);
    std::vector<pollfd> all = {{listener_.number(), POLLIN, 0}};
    for (const Stranger& stranger : strangers_) {
      all.push_back({stranger.connection->descriptor(), POLLIN, 0});
      until = std::min(until, stranger.until);
    }
    if (strangers_.size() >= kMostStrangers) all[0].events = 0;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
    ::poll(all.data(), all.size(), static_cast<int>(std::max<std::int64_t>(0, left)));
    std::size_t at = 1;
    for (auto stranger = strangers_.begin(); stranger != strangers_.end(); ++at) {
      const bool goes_on =
          all[at].revents != 0 ? listen_to(&*stranger) : Clock::now() < stranger->until;
      if (!goes_on && stranger->connection != nullptr) ++turned_away_;
      stranger = goes_on ? std::next(stranger) : strangers_.erase(stranger);
    }
    if ((all[0].revents & POLLIN) == 0) return;
    Descriptor socket(
        ::accept4(listener_.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.is_open()) return;
    Stranger stranger{std::make_unique<Connection>(std::move(socket)), now + kTimeForHello,
                      draw_random_number()};
    WireWriter challenge;
    challenge.bytes(stranger.challenge);
    tell(stranger.connection.get(), Message::kChallenge, challenge);
    strangers_.push_back(std::move(stranger));
  }

  // False when it need not be listened to any more: it has become an arrival, or is not ours.
  bool listen_to(Stranger* stranger) {
    std::array<std::byte, 4096> bytes;
    const int socket = stranger->connection->descriptor();
    const ssize_t got = ::recv(socket, bytes.data(), bytes.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got <= 0) return false;
    stranger->heard.insert(stranger->heard.end(), bytes.begin(), bytes.begin() + got);
    Hello hello;
    try {
      const auto frame =
          take_frame(&stranger->heard, stranger->proven ? kMostHelloBytes : kWorkerProofBytes);
      if (!frame) return true;
      if (!stranger->heard.empty()) return false;  // nobody says more before the answer
      if (!stranger->proven) return is_proof(*frame, stranger);
      if (!decode_hello(*frame, &hello)) return false;
    } catch (const SpecError&) {
      return false;
    }
    admit(std::move(hello), std::move(stranger->connection));
    return false;
  }

  // Answers a proof with ours.
  bool is_proof(const Frame& frame, Stranger* stranger) {
    if (frame.kind != static_cast<std::uint8_t>(Message::kWorkerProof) ||
        frame.message.size() != kWorkerProofBytes) {
      return false;
    }
    RandomNumber theirs;
    Proof proof;
    const auto middle = frame.message.begin() + static_cast<std::ptrdiff_t>(theirs.size());
    std::copy(frame.message.begin(), middle, theirs.begin());
    std::copy(middle, frame.message.end(), proof.begin());
    if (!same(proof, prove(settings_.secret, Prover::kWorker, stranger->challenge, theirs))) {
      ++without_secret_;
      return false;
    }
    stranger->proven = true;
    WireWriter answer;
    answer.bytes(prove(settings_.secret, Prover::kRank0, stranger->challenge, theirs));
    tell(stranger->connection.get(), Message::kRank0Proof, answer);
    return true;
  }

  void admit(Hello hello, std::unique_ptr<Connection> connection) {
    const std::string who = "rank " + std::to_string(hello.rank) + " (" + hello.host +
                            ", process " + std::to_string(hello.pid) + ")";
    if (!refusal_.empty()) {
      refused_.insert(hello.rank);
      return refuse(connection.get(), refusal_);
    }
    try {
      check(hello, who);
    } catch (const Misfit& problem) {
      if (arrivals_.count(hello.rank) == 0) refused_.insert(hello.rank);
      refuse(connection.get(), problem.what());
      // Who has proved that it is ours is a mistake of ours, which waiting does not mend.
      (settings_.secret.text.empty() ? did_not_belong_ : misfit_) = problem.what();
      return;
    }
    Arrival& arrival = arrivals_[hello.rank];
    const auto purpose = static_cast<std::size_t>(hello.purpose);
    arrival.hello = std::move(hello);
    arrival.connections[purpose] = std::move(connection);
  }

  void check(const Hello& hello, const std::string& who) const {
    const auto refuse = [&who](const std::string& why) { throw Misfit(who + " " + why); };
    if (hello.identity.build != settings_.identity.build) {
      refuse("is of another build of servelab (" + hello.identity.build + ", rank 0 is " +
             settings_.identity.build + "): results come from one build");
    }
    if (hello.ranks != settings_.ranks) {
      refuse("counts " + std::to_string(hello.ranks) + " ranks, and rank 0 " +
             std::to_string(settings_.ranks));
    }
    if (hello.rank < 1 || hello.rank >= settings_.ranks) {
      refuse("is none of the ranks 1 to " + std::to_string(settings_.ranks - 1));
    }
    if (hello.identity.models != settings_.identity.models) {
      refuse(
          "read other models from its specs than rank 0: the specs or the models' files differ "
          "between the two");
    }
    const auto found = arrivals_.find(hello.rank);
    if (found == arrivals_.end()) return;
    const Arrival& other = found->second;
    if (other.hello.process != hello.process ||
        other.connections[static_cast<std::size_t>(hello.purpose)] != nullptr) {
      refuse("is there twice: process " + std::to_string(other.hello.pid) + " on " +
             other.hello.host + " says that it is the same rank");
    }
  }

  std::string who_is_missing() const {
    std::string missing;
    int count = 0;
    for (int rank = 1; rank < settings_.ranks; ++rank) {
      const auto found = arrivals_.find(rank);
      if (found != arrivals_.end() && found->second.complete()) continue;
      if (++count <= 16) missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    }
    if (count > 16) missing += ", ...";
    const auto waited = std::chrono::duration_cast<std::chrono::seconds>(settings_.patience);
    std::string text = (count == 1 ? "rank " : "ranks ") + missing + " of " +
                       std::to_string(settings_.ranks) + " did not come to " + settings_.at.text() +
                       " within " + std::to_string(waited.count()) + " s";
    std::string others;
    if (turned_away_ > without_secret_) {
      others += std::to_string(turned_away_ - without_secret_) + " connections were not servelab's";
    }
    if (without_secret_ > 0) {
      others +=
          (others.empty() ? "" : ", ") + std::to_string(without_secret_) + " had another secret";
    }
    if (!did_not_belong_.empty()) others += (others.empty() ? "" : ", ") + did_not_belong_;
    if (!others.empty()) text += " (" + others + ")";
    return text + "; --ranks-timeout gives them longer";
  }

  const GroupSettings& settings_;
  Descriptor listener_;
  const Clock::time_point deadline_;
  std::list<Stranger> strangers_;
  std::map<int, Arrival> arrivals_;
  int turned_away_ = 0;
  int without_secret_ = 0;      // of those
  std::string did_not_belong_;  // who was refused last, and need not be ours
  std::string misfit_;          // who is ours and ends it
  std::string refusal_;         // what whoever comes from now on is told
  std::set<int> refused_;       // ranks
};

}  // namespace

std::vector<std::unique_ptr<Peer>> gather(const GroupSettings& settings) {
  if (settings.ranks == 1) return {};
  return Gathering(settings).run();
}

}  // namespace servelab::ranks
