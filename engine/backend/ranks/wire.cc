#include "engine/backend/ranks/wire.h"

#include <algorithm>

#include "engine/backend/device/accelerator.h"

namespace servelab::ranks {

void damaged(const std::string& what) { throw GroupError("a damaged message: " + what); }

void WireWriter::number(std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) data_.push_back(static_cast<std::byte>(value >> (8 * i) & 0xff));
}

void WireWriter::text(std::string_view value) {
  value = value.substr(0, kMostTextBytes);
  u32(static_cast<std::uint32_t>(value.size()));
  bytes(std::as_bytes(std::span(value)));
}

void WireWriter::ids(std::span<const std::int32_t> values) {
  u32(static_cast<std::uint32_t>(values.size()));
  for (const std::int32_t value : values) i32(value);
}

void WireWriter::bytes(std::span<const std::byte> values) {
  data_.insert(data_.end(), values.begin(), values.end());
}

std::uint64_t WireReader::number(int bytes) {
  const std::span<const std::byte> from = this->bytes(static_cast<std::size_t>(bytes));
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < from.size(); ++i) {
    value |= static_cast<std::uint64_t>(from[i]) << (8 * i);
  }
  return value;
}

std::span<const std::byte> WireReader::bytes(std::size_t count) {
  if (count > rest_.size()) damaged("it ends too early");
  const std::span<const std::byte> taken = rest_.first(count);
  rest_ = rest_.subspan(count);
  return taken;
}

std::size_t WireReader::count(std::size_t bytes_each, const char* what) {
  const std::size_t count = u32();
  if (count > rest_.size() / bytes_each) {
    damaged("it says " + std::to_string(count) + " " + what + " and holds fewer");
  }
  return count;
}

std::string WireReader::text() {
  const std::size_t size = count(1, "letters");
  if (size > kMostTextBytes) damaged("a text of " + std::to_string(size) + " bytes");
  const std::span<const std::byte> from = bytes(size);
  std::string text(size, ' ');
  std::transform(from.begin(), from.end(), text.begin(), [](std::byte each) {
    const auto letter = static_cast<char>(each);
    return letter >= ' ' || letter < 0 ? letter : '?';  // it may be printed
  });
  return text;
}

std::vector<std::int32_t> WireReader::ids() {
  std::vector<std::int32_t> values(count(sizeof(std::int32_t), "numbers"));
  for (std::int32_t& value : values) value = i32();
  return values;
}

std::uint8_t WireReader::choice(int count, const char* what) {
  const std::uint8_t value = u8();
  if (value >= count) damaged(std::string(what) + " is " + std::to_string(value));
  return value;
}

std::int32_t WireReader::between(std::int32_t least, std::int32_t most, const char* what) {
  const std::int32_t value = i32();
  if (value < least || value > most) {
    damaged(std::string(what) + " is " + std::to_string(value));
  }
  return value;
}

void WireReader::end() const {
  if (!rest_.empty()) damaged(std::to_string(rest_.size()) + " bytes too many");
}

}  // namespace servelab::ranks
