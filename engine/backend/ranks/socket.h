// Connections between ranks over TCP, and frames on them: the number of bytes that follow (u32,
// little-endian), the kind of message (u8), and the message.
#ifndef SERVELAB_BACKEND_RANKS_SOCKET_H_
#define SERVELAB_BACKEND_RANKS_SOCKET_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/backend/ranks/wire.h"

namespace servelab::ranks {

using Clock = std::chrono::steady_clock;
using Deadline = std::optional<Clock::time_point>;  // none: wait as long as it takes

inline constexpr std::size_t kMostFrameBytes = std::size_t{64} << 20;
inline constexpr std::size_t kMostHelloBytes = 8192;

struct RankAddress {
  std::string host;
  int port = 0;
  std::string text() const { return host + ":" + std::to_string(port); }
};

struct Frame {
  std::uint8_t kind = 0;
  std::vector<std::byte> message;
};

// A file descriptor that is closed with the object.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();
  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  void close();

 private:
  int number_ = -1;
};

// One connection. Its peer's death, or a network that is gone for 10 s, ends it. One thread
// receives; any thread sends. SpecError, without saying who the peer is, where it has ended or the
// deadline has passed.
class Connection {
 public:
  explicit Connection(Descriptor descriptor);

  void send(std::uint8_t kind, const WireWriter& message, Deadline deadline = {});
  // A frame of at most `most` bytes; memory grows with what arrives, not with what is announced.
  Frame receive(Deadline deadline = {}, std::size_t most = kMostFrameBytes);
  int descriptor() const { return descriptor_.number(); }

 private:
  void write_all(const std::byte* data, std::size_t size, Deadline deadline);
  void read_all(std::byte* data, std::size_t size, Deadline deadline);
  Descriptor descriptor_;
  std::mutex sending_;
};

// How far connections may go; kThisMachine: SpecError for an address that is not of the loopback
// interface.
enum class Reach : std::uint8_t { kThisMachine, kOthers };

// Listens at the address. With Reach::kOthers, a host's name that this machine takes for itself
// alone (127.0.1.1 in /etc/hosts) is listened for on all of its addresses, since others know it by
// another one.
Descriptor listen_at(const RankAddress& address, Reach reach);

// Tries until somebody listens there. SpecError at the deadline, with the last reason. `before`,
// if it is given, is called before each attempt and may throw.
Descriptor connect_to(const RankAddress& address, Reach reach, Clock::time_point deadline,
                      const std::function<void()>& before = {});

// The frame's bytes, for sockets that are read as they fill up: the whole frame, or nothing yet.
// Takes it out of `buffer`. SpecError for more than `most` bytes.
std::optional<Frame> take_frame(std::vector<std::byte>* buffer, std::size_t most);

}  // namespace servelab::ranks

#endif  // SERVELAB_BACKEND_RANKS_SOCKET_H_
