#include "engine/backend/ranks/wire.h"

#include <algorithm>

#include "engine/backend/device/tensor_parallel.h"

namespace servelab::ranks {

void damaged(const std::string& what) { throw GroupError("a damaged message: " + what); }

void WireWriter::text(std::string_view value) {
  value = value.substr(0, kMostTextBytes);
  number(static_cast<std::uint32_t>(value.size()));
  bytes(std::as_bytes(std::span(value)));
}

void WireWriter::bytes(std::span<const std::byte> values) {
  data_.insert(data_.end(), values.begin(), values.end());
}

std::span<const std::byte> WireReader::bytes(std::size_t count) {
  if (count > rest_.size()) damaged("it ends too early");
  const std::span<const std::byte> taken = rest_.first(count);
  rest_ = rest_.subspan(count);
  return taken;
}

std::size_t WireReader::count(std::size_t bytes_each, const char* what) {
  const std::size_t count = get<std::uint32_t>();
  if (count > rest_.size() / bytes_each) {
    damaged("it says " + std::to_string(count) + " " + what + " and holds fewer");
  }
  return count;
}

void WireReader::text(std::string& value) {
  const std::size_t size = count(1, "letters");
  if (size > kMostTextBytes) damaged("a text of " + std::to_string(size) + " bytes");
  const std::span<const std::byte> from = bytes(size);
  value.resize(size);
  std::transform(from.begin(), from.end(), value.begin(), [](std::byte each) {
    const auto letter = static_cast<char>(each);
    return letter >= ' ' || letter < 0 ? letter : '?';  // it may be printed
  });
}

void WireReader::end() const {
  if (!rest_.empty()) damaged(std::to_string(rest_.size()) + " bytes too many");
}

}  // namespace servelab::ranks
