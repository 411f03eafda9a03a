// Bytes of messages between ranks: little-endian numbers, one after the other. Whatever is read
// came from outside: every length is checked against what has really arrived.
#ifndef SERVELAB_BACKEND_RANKS_WIRE_H_
#define SERVELAB_BACKEND_RANKS_WIRE_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace servelab::ranks {

inline constexpr std::size_t kMostTextBytes = 4096;

class WireWriter {
 public:
  void u8(std::uint8_t value) { number(value, 1); }
  void u32(std::uint32_t value) { number(value, 4); }
  void u64(std::uint64_t value) { number(value, 8); }
  void i32(std::int32_t value) { number(static_cast<std::uint32_t>(value), 4); }
  void i64(std::int64_t value) { number(static_cast<std::uint64_t>(value), 8); }
  void f64(double value) { number(std::bit_cast<std::uint64_t>(value), 8); }
  void flag(bool value) { number(value ? 1 : 0, 1); }
  void text(std::string_view value);  // cut off at kMostTextBytes
  void ids(std::span<const std::int32_t> values);
  void bytes(std::span<const std::byte> values);  // without their number

  const std::vector<std::byte>& data() const { return data_; }

 private:
  void number(std::uint64_t value, int bytes);
  std::vector<std::byte> data_;
};

// Throws GroupError ("a damaged message: ...") for bytes that are not what is asked for.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> data) : rest_(data) {}

  std::uint8_t u8() { return static_cast<std::uint8_t>(number(1)); }
  std::uint32_t u32() { return static_cast<std::uint32_t>(number(4)); }
  std::uint64_t u64() { return number(8); }
  std::int32_t i32() { return static_cast<std::int32_t>(u32()); }
  std::int64_t i64() { return static_cast<std::int64_t>(u64()); }
  double f64() { return std::bit_cast<double>(u64()); }
  bool flag() { return choice(2, "a flag") == 1; }
  std::string text();
  std::vector<std::int32_t> ids();

  // One of `count` values of an enum.
  std::uint8_t choice(int count, const char* what);
  // Within [least, most].
  std::int32_t between(std::int32_t least, std::int32_t most, const char* what);
  // How many things follow that take at least `bytes_each`.
  std::size_t count(std::size_t bytes_each, const char* what);
  std::span<const std::byte> bytes(std::size_t count);
  std::size_t left() const { return rest_.size(); }
  void end() const;  // nothing may be left

 private:
  std::uint64_t number(int bytes);
  std::span<const std::byte> rest_;
};

[[noreturn]] void damaged(const std::string& what);

}  // namespace servelab::ranks

#endif  // SERVELAB_BACKEND_RANKS_WIRE_H_
