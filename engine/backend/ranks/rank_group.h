// Rank 0's end of a group of processes: who the others are, and whether they still are.
//
// The group lives or dies as one. When a rank has ended, is silent for too long, answers nonsense
// or no longer agrees with the others, `on_failure` is called once, from whichever thread saw it;
// the program's ends the process there, since a device may be waiting for a rank that is gone.
#ifndef SERVELAB_BACKEND_RANKS_RANK_GROUP_H_
#define SERVELAB_BACKEND_RANKS_RANK_GROUP_H_

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/backend/ranks/hello.h"
#include "engine/backend/ranks/messages.h"
#include "engine/backend/ranks/secret.h"
#include "engine/backend/ranks/socket.h"

namespace servelab::ranks {

using Failed = std::function<void(const std::string& text)>;

struct GroupSettings {
  RankAddress at;
  int ranks = 1;
  int local_rank = 0;  // rank 0's among those of its machine
  Identity identity;
  GroupSecret secret;
  std::chrono::milliseconds patience{300'000};  // for ranks to come, and for an answer
  const std::atomic<int>* stop = nullptr;       // not 0: wait for nobody any more
  Failed on_failure;
  std::function<void(int number)> on_signal;  // a worker was told to stop
};

// One other rank: its three connections.
class Peer {
 public:
  Peer(Hello hello, std::array<std::unique_ptr<Connection>, kPurposes> connections);

  int rank() const { return hello_.rank; }
  const std::string& host() const { return hello_.host; }
  std::string name() const;  // "rank 1 (node7, process 4711)"

  // Sends a command and waits for its reply. What its worker reports is thrown with its name; the
  // group has failed where it does not answer.
  std::vector<std::byte> call(Purpose purpose, Message kind, const WireWriter& message,
                              Deadline deadline,
                              const std::function<void(Connection*)>& content = {});
  void post(Purpose purpose, Message kind, const WireWriter& message);
  Connection& control() { return *connections_[static_cast<std::size_t>(Purpose::kControl)]; }

 private:
  const Hello hello_;
  std::array<std::unique_ptr<Connection>, kPurposes> connections_;
  std::array<std::mutex, kPurposes> calling_;
};

class RankGroup {
 public:
  // Waits at the address until all have come. Throws SpecError where they do not, with who is
  // missing, or where one does not belong to them; those who came are told.
  explicit RankGroup(GroupSettings settings);
  ~RankGroup();  // says goodbye with exit code 1, unless that was said
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  int ranks() const { return settings_.ranks; }
  int local_rank() const { return settings_.local_rank; }
  Peer& peer(int rank) { return *peers_[static_cast<std::size_t>(rank - 1)]; }
  Deadline deadline() const { return Clock::now() + settings_.patience; }  // of an answer

  // Tells the others why, and calls on_failure. Any thread; the first one counts.
  void fail(const std::string& text);

  // Ends the workers with this exit code.
  void goodbye(int code);

  // "4 processes on node1, node2"
  std::string description() const;

 private:
  void watch();
  bool hear(Peer* peer);

  const GroupSettings settings_;
  std::vector<std::unique_ptr<Peer>> peers_;  // of rank 1 and up
  std::atomic<bool> failed_{false};
  std::atomic<bool> over_{false};
  Descriptor wake_read_;
  Descriptor wake_write_;
  std::thread watcher_;
};

// How far a group with this secret reaches.
Reach reach_of(const GroupSecret& secret);

// This machine's name.
std::string host_name();

}  // namespace servelab::ranks

#endif  // SERVELAB_BACKEND_RANKS_RANK_GROUP_H_
