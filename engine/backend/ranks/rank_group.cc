#include "engine/backend/ranks/rank_group.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <set>
#include <utility>

#include "engine/backend/ranks/gathering.h"
#include "engine/core/threads.h"

namespace servelab::ranks {
namespace {

constexpr std::chrono::seconds kTimeToTell{2};

}  // namespace

Reach reach_of(const GroupSecret& secret) {
  return secret.reaches_others() ? Reach::kOthers : Reach::kThisMachine;
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  return ::gethostname(name, HOST_NAME_MAX) == 0 && name[0] != '\0' ? name : "this machine";
}

Peer::Peer(Hello hello, std::array<std::unique_ptr<Connection>, kPurposes> connections)
    : hello_(std::move(hello)), connections_(std::move(connections)) {}

std::string Peer::name() const {
  return "rank " + std::to_string(hello_.rank) + " (" + hello_.host + ", process " +
         std::to_string(hello_.pid) + ")";
}

std::vector<std::byte> Peer::call(Purpose purpose, Message kind, const WireWriter& message,
                                  Deadline deadline,
                                  const std::function<void(Connection*)>& content) {
  const auto which = static_cast<std::size_t>(purpose);
  const std::lock_guard lock(calling_[which]);
  Connection& connection = *connections_[which];
  Frame reply;
  try {
    connection.send(static_cast<std::uint8_t>(kind), message, deadline);
    if (content) content(&connection);
    reply = connection.receive(deadline);
  } catch (const SpecError& problem) {
    throw GroupError(name() + ": " + problem.what());
  }
  if (reply.kind == static_cast<std::uint8_t>(Message::kFailed)) {
    throw_failure(name(), reply.message);
  }
  if (reply.kind != static_cast<std::uint8_t>(Message::kDone)) {
    throw GroupError(name() + ": sent something that is no reply");
  }
  return std::move(reply.message);
}

void Peer::post(Purpose purpose, Message kind, const WireWriter& message) {
  connections_[static_cast<std::size_t>(purpose)]->send(static_cast<std::uint8_t>(kind), message,
                                                        Clock::now() + kTimeToTell);
}

RankGroup::RankGroup(GroupSettings settings)
    : settings_(std::move(settings)), peers_(gather(settings_)) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) throw SpecError("no pipe can be made");
  wake_read_ = Descriptor(ends[0]);
  wake_write_ = Descriptor(ends[1]);
  watcher_ = std::move(start_threads(
                           1, [this](int) { watch(); }, [] {})
                           .front());
}

RankGroup::~RankGroup() {
  goodbye(1);
  wake_write_.close();
  watcher_.join();
}

void RankGroup::fail(const std::string& text) {
  if (over_ || failed_.exchange(true)) return;
  const WireWriter message = encode(FailureText{Failure::kGroup, text});
  for (const auto& peer : peers_) {
    try {
      peer->post(Purpose::kControl, Message::kAbort, message);
    } catch (const SpecError&) {  // it has ended too
    }
  }
  settings_.on_failure(text);
}

void RankGroup::goodbye(int code) {
  if (over_.exchange(true)) return;
  WireWriter message;
  message.numbers(code);
  for (const auto& peer : peers_) {
    try {
      peer->post(Purpose::kControl, Message::kGoodbye, message);
    } catch (const SpecError&) {
    }
  }
}

std::string RankGroup::description() const {
  std::set<std::string> hosts = {host_name()};
  for (const auto& peer : peers_) hosts.insert(peer->host());
  std::string text;
  for (const std::string& host : hosts) text += (text.empty() ? "" : ", ") + host;
  return std::to_string(settings_.ranks) + " processes on " + text;
}

// What a worker says of itself, and that it has ended. False: listen to it no longer.
bool RankGroup::hear(Peer* peer) {
  try {
    const Frame frame = peer->control().receive(Clock::now() + kTimeToTell, kMostHelloBytes);
    if (frame.kind == static_cast<std::uint8_t>(Message::kSignal)) {
      const int number = WireReader(frame.message).get<int>();
      if (number < 1 || number > 64) damaged("a signal is " + std::to_string(number));
      if (settings_.on_signal) settings_.on_signal(number);
      return true;
    }
    if (frame.kind == static_cast<std::uint8_t>(Message::kAbort)) {
      fail(peer->name() + ": " + decode<FailureText>(frame.message).text);
      return false;
    }
    damaged("kind " + std::to_string(frame.kind));
  } catch (const SpecError& problem) {
    fail(peer->name() + ": " + problem.what());
  }
  return false;
}

void RankGroup::watch() {
  std::vector<pollfd> all = {{wake_read_.number(), POLLIN, 0}};
  for (const auto& peer : peers_) all.push_back({peer->control().descriptor(), POLLIN, 0});
  for (;;) {
    if (::poll(all.data(), all.size(), -1) < 0 && errno != EINTR) return;
    if (all[0].revents != 0) return;
    for (std::size_t i = 1; i < all.size(); ++i) {
      if (all[i].revents == 0) continue;
      if (!hear(peers_[i - 1].get())) all[i].fd = -1;
    }
  }
}

}  // namespace servelab::ranks
