// libFuzzer: whatever comes over a connection between ranks is a message or a SpecError. The first
// byte says as which one the others are read; "frame" takes them off the connection.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/backend/ranks/adapter_content.h"
#include "engine/backend/ranks/hello.h"
#include "engine/backend/ranks/messages.h"

namespace {

using namespace servelab;         // NOLINT: a program of one page
using namespace servelab::ranks;  // NOLINT

void read(std::uint8_t kind, std::span<const std::byte> message) {
  ModelConfig model;
  model.layers = 2;
  model.hidden = 32;
  model.heads = model.kv_heads = 2;
  model.head_dim = 16;
  model.ffn = 64;
  Hello hello;
  std::vector<std::byte> buffer(message.begin(), message.end());
  switch (kind % 7) {
    case 0:
      decode_hello({static_cast<std::uint8_t>(Message::kHello), std::move(buffer)}, &hello);
      return;
    case 1:
      decode<OpenRank>(message);
      return;
    case 2:
      decode<DeviceJob>(message);
      return;
    case 3:
      decode<StepReply>(message);
      return;
    case 4:
      decode<LoadRequest>(message);
      return;
    case 5:
      decode_shape(message, model);
      return;
    default:
      while (take_frame(&buffer, kMostHelloBytes)) {
      }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  try {
    read(data[0], std::as_bytes(std::span(data + 1, size - 1)));
  } catch (const servelab::SpecError&) {
  }
  return 0;
}
