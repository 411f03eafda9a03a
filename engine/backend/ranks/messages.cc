#include "engine/backend/ranks/messages.h"

#include <stdexcept>

namespace servelab::ranks {

void throw_failure(const std::string& who, std::span<const std::byte> message) {
  const auto failure = decode<FailureText>(message);
  const std::string text = who + ": " + failure.text;
  if (failure.kind == Failure::kGroup) throw GroupError(text);
  if (failure.kind == Failure::kInput) throw SpecError(text);
  throw std::runtime_error(text);
}

}  // namespace servelab::ranks
