#include "engine/backend/ranks/hello.h"

namespace servelab::ranks {

WireWriter encode_hello(const Hello& hello) {
  WireWriter out;
  out.numbers(kMagic, kVersion);
  each_field(out, hello);
  return out;
}

bool decode_hello(const Frame& frame, Hello* hello) {
  if (frame.kind != static_cast<std::uint8_t>(Message::kHello)) return false;
  try {
    WireReader in(frame.message);
    if (in.get<std::uint32_t>() != kMagic || in.get<std::uint32_t>() != kVersion) return false;
    each_field(in, *hello);
    in.end();
    return true;
  } catch (const SpecError&) {
    return false;
  }
}

}  // namespace servelab::ranks
