// What a worker says of itself on each of its connections, once it has proved that it belongs.
#ifndef SERVELAB_BACKEND_RANKS_HELLO_H_
#define SERVELAB_BACKEND_RANKS_HELLO_H_

#include <cstdint>
#include <string>

#include "engine/backend/ranks/messages.h"

namespace servelab::ranks {

inline constexpr std::uint32_t kMagic = 0x4b4e5253;  // "SRNK"
inline constexpr std::uint32_t kVersion = 2;

// Both sides have to have been built from the same sources and to serve the same models.
struct Identity {
  std::string build;
  std::string models;  // a digest
};

struct Hello {
  Identity identity;
  int rank = 0;
  int ranks = 0;
  Purpose purpose = Purpose::kSteps;
  std::uint64_t process = 0;  // drawn by the process: the same rank from two processes differs
  std::string host;
  std::int32_t pid = 0;
};

template <class Wire, MaybeConst<Hello> T>
void each_field(Wire& wire, T& hello) {
  auto& [identity, rank, ranks, purpose, process, host, pid] = hello;
  wire.text(identity.build);
  wire.text(identity.models);
  wire.numbers(rank, ranks);
  wire.choice(purpose, kPurposes, "a purpose");
  wire.numbers(process);
  wire.text(host);
  wire.numbers(pid);
}

WireWriter encode_hello(const Hello& hello);
// False for bytes that no servelab of this version has sent.
bool decode_hello(const Frame& frame, Hello* hello);

}  // namespace servelab::ranks

#endif  // SERVELAB_BACKEND_RANKS_HELLO_H_
