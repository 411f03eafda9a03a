#include "engine/backend/ranks/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "engine/core/check.h"

namespace servelab::ranks {
namespace {

constexpr int kSilentSeconds = 10;  // of the network, until a connection counts as ended
constexpr std::size_t kReadAtOnce = std::size_t{1} << 20;
constexpr std::size_t kHeadBytes = 5;
constexpr std::chrono::milliseconds kTryAgain{50};
constexpr int kWaiting = 128;  // connections that may wait to be accepted

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses resolve(const RankAddress& address, std::string* problem) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int code =
      ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (code != 0) *problem = ::gai_strerror(code);
  return {code == 0 ? found : nullptr, &::freeaddrinfo};
}

void set(int socket, int level, int option, int value) {
  ::setsockopt(socket, level, option, &value, sizeof value);
}

// Waits until `events` or the deadline; false at the deadline.
bool wait_for(int socket, short events, Deadline deadline) {
  for (;;) {
    int wait_ms = -1;
    if (deadline) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now());
      wait_ms = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1 << 30));
    }
    pollfd one{socket, events, 0};
    const int ready = ::poll(&one, 1, wait_ms);
    if (ready > 0) return true;
    if (ready == 0) return false;
    if (errno != EINTR) throw SpecError(std::string("poll: ") + std::strerror(errno));
  }
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* const v4 = reinterpret_cast<const sockaddr_in*>(address);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
  }
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr) != 0;
}

// Whether the name says itself that it means this machine.
bool means_this_machine(const std::string& host) {
  return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0;
}

void check_reach(const RankAddress& address, const addrinfo& found, Reach reach) {
  if (reach == Reach::kOthers || is_loopback(found.ai_addr)) return;
  throw SpecError("rank 0's address " + address.text() +
                  " is on a network, where ranks have to prove that they belong: give all of them "
                  "--ranks-secret FILE or SERVELAB_RANKS_SECRET, or --ranks-open to do without");
}

// A connection attempt to a port that nobody listens at can meet itself, when its own port is drawn
// to be the same.
bool is_own_end(int socket) {
  sockaddr_storage own{};
  sockaddr_storage peer{};
  socklen_t own_size = sizeof own;
  socklen_t peer_size = sizeof peer;
  return ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
         ::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &peer_size) == 0 &&
         own_size == peer_size && std::memcmp(&own, &peer, own_size) == 0;
}

// Connects within the deadline; 0, or the reason as an errno.
int try_connect(int socket, const addrinfo& to, Clock::time_point deadline) {
  int error = 0;
  if (::connect(socket, to.ai_addr, to.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return errno;
    if (!wait_for(socket, POLLOUT, deadline)) return ETIMEDOUT;
    socklen_t size = sizeof error;
    ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
  }
  return error == 0 && is_own_end(socket) ? ECONNREFUSED : error;
}

void put_u32(std::byte* to, std::size_t value) {
  for (int i = 0; i < 4; ++i) to[i] = static_cast<std::byte>(value >> (8 * i) & 0xff);
}

std::size_t frame_size(const std::byte* from, std::size_t most) {
  std::size_t size = 0;
  for (int i = 0; i < 4; ++i) size |= static_cast<std::size_t>(from[i]) << (8 * i);
  if (size > most) damaged("a frame of " + std::to_string(size) + " bytes");
  return size;
}

}  // namespace

Descriptor::Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    close();
    number_ = std::exchange(other.number_, -1);
  }
  return *this;
}
Descriptor::~Descriptor() { close(); }
void Descriptor::close() {
  if (number_ >= 0) ::close(std::exchange(number_, -1));
}

Connection::Connection(Descriptor descriptor) : descriptor_(std::move(descriptor)) {
  const int socket = descriptor_.number();
  ::fcntl(socket, F_SETFL, ::fcntl(socket, F_GETFL) | O_NONBLOCK);
  ::fcntl(socket, F_SETFD, FD_CLOEXEC);
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, kSilentSeconds / 2);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, kSilentSeconds / 2);
  set(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, kSilentSeconds * 1000);
}

void Connection::send(std::uint8_t kind, const WireWriter& message, Deadline deadline) {
  const std::vector<std::byte>& data = message.data();
  SL_CHECK(data.size() < kMostFrameBytes, "a message between ranks keeps its limit");
  std::byte head[kHeadBytes];
  put_u32(head, data.size());
  head[4] = static_cast<std::byte>(kind);
  std::vector<std::byte> frame(head, head + kHeadBytes);
  frame.insert(frame.end(), data.begin(), data.end());
  const std::lock_guard lock(sending_);
  write_all(frame.data(), frame.size(), deadline);
}

void Connection::write_all(const std::byte* data, std::size_t size, Deadline deadline) {
  while (size > 0) {
    const ssize_t written = ::send(descriptor_.number(), data, size, MSG_NOSIGNAL);
    if (written >= 0) {
      data += written;
      size -= static_cast<std::size_t>(written);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(descriptor_.number(), POLLOUT, deadline)) throw SpecError("takes nothing");
    } else if (errno != EINTR) {
      throw SpecError(std::string("the connection ended (") + std::strerror(errno) + ")");
    }
  }
}

void Connection::read_all(std::byte* data, std::size_t size, Deadline deadline) {
  while (size > 0) {
    const ssize_t got = ::recv(descriptor_.number(), data, size, 0);
    if (got > 0) {
      data += got;
      size -= static_cast<std::size_t>(got);
    } else if (got == 0) {
      throw SpecError("the connection ended");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for(descriptor_.number(), POLLIN, deadline)) throw SpecError("does not answer");
    } else if (errno != EINTR) {
      throw SpecError(std::string("the connection ended (") + std::strerror(errno) + ")");
    }
  }
}

Frame Connection::receive(Deadline deadline, std::size_t most) {
  std::byte head[kHeadBytes];
  read_all(head, kHeadBytes, deadline);
  const std::size_t size = frame_size(head, most);
  Frame frame;
  frame.kind = static_cast<std::uint8_t>(head[4]);
  while (frame.message.size() < size) {
    const std::size_t at = frame.message.size();
    frame.message.resize(std::min(size, at + kReadAtOnce));
    read_all(frame.message.data() + at, frame.message.size() - at, deadline);
  }
  return frame;
}

std::optional<Frame> take_frame(std::vector<std::byte>* buffer, std::size_t most) {
  if (buffer->size() < kHeadBytes) return std::nullopt;
  const std::size_t size = frame_size(buffer->data(), most);
  if (buffer->size() < kHeadBytes + size) return std::nullopt;
  const auto begin = buffer->begin() + static_cast<std::ptrdiff_t>(kHeadBytes);
  const auto end = begin + static_cast<std::ptrdiff_t>(size);
  Frame frame{static_cast<std::uint8_t>((*buffer)[4]), {begin, end}};
  buffer->erase(buffer->begin(), end);
  return frame;
}

Descriptor listen_at(const RankAddress& address, Reach reach) {
  std::string problem;
  const Addresses found = resolve(address, &problem);
  for (addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
    check_reach(address, *each, reach);
    Descriptor socket(::socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, 0));
    if (!socket.is_open()) {
      problem = std::strerror(errno);
      continue;
    }
    set(socket.number(), SOL_SOCKET, SO_REUSEADDR, 1);
    sockaddr_storage at{};
    std::memcpy(&at, each->ai_addr, each->ai_addrlen);
    if (reach == Reach::kOthers && is_loopback(each->ai_addr) &&
        !means_this_machine(address.host)) {
      if (each->ai_family == AF_INET) {
        reinterpret_cast<sockaddr_in*>(&at)->sin_addr.s_addr = htonl(INADDR_ANY);
      } else {
        reinterpret_cast<sockaddr_in6*>(&at)->sin6_addr = in6addr_any;
      }
    }
    if (::bind(socket.number(), reinterpret_cast<const sockaddr*>(&at), each->ai_addrlen) == 0 &&
        ::listen(socket.number(), kWaiting) == 0) {
      return socket;
    }
    problem = std::strerror(errno);
  }
  throw SpecError("rank 0 cannot listen at " + address.text() + " (" + problem +
                  "); give all ranks another one: --ranks-at HOST:PORT");
}

Descriptor connect_to(const RankAddress& address, Reach reach, Clock::time_point deadline,
                      const std::function<void()>& before) {
  std::string problem;
  for (;;) {
    if (before) before();
    const Addresses found = resolve(address, &problem);
    for (addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
      check_reach(address, *each, reach);
      Descriptor socket(
          ::socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (!socket.is_open()) {
        problem = std::strerror(errno);
        continue;
      }
      const int error = try_connect(socket.number(), *each, deadline);
      if (error == 0) return socket;
      problem = std::strerror(error);
    }
    if (Clock::now() + kTryAgain > deadline) {
      throw SpecError("rank 0 cannot be reached at " + address.text() + " (" + problem + ")");
    }
    std::this_thread::sleep_for(kTryAgain);
  }
}

}  // namespace servelab::ranks
