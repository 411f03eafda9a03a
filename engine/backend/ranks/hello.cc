#include "engine/backend/ranks/hello.h"

namespace servelab::ranks {

WireWriter encode(const Hello& hello) {
  WireWriter out;
  out.u32(kMagic);
  out.u32(kVersion);
  out.text(hello.identity.build);
  out.text(hello.identity.models);
  out.i32(hello.rank);
  out.i32(hello.ranks);
  out.u8(static_cast<std::uint8_t>(hello.purpose));
  out.u64(hello.process);
  out.text(hello.host);
  out.i32(hello.pid);
  return out;
}

bool decode_hello(const Frame& frame, Hello* hello) {
  if (frame.kind != static_cast<std::uint8_t>(Message::kHello)) return false;
  try {
    WireReader in(frame.message);
    if (in.u32() != kMagic || in.u32() != kVersion) return false;
    hello->identity.build = in.text();
    hello->identity.models = in.text();
    hello->rank = in.i32();
    hello->ranks = in.i32();
    hello->purpose = static_cast<Purpose>(in.choice(kPurposes, "a purpose"));
    hello->process = in.u64();
    hello->host = in.text();
    hello->pid = in.i32();
    in.end();
    return true;
  } catch (const SpecError&) {
    return false;
  }
}

}  // namespace servelab::ranks
