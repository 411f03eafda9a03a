// Bytes of messages between ranks: little-endian numbers, one after the other. A structure says its
// fields once (each_field), for the one that writes and the one that reads. Whatever is read came
// from outside: every length is checked against what has really arrived.
#ifndef SERVELAB_BACKEND_RANKS_WIRE_H_
#define SERVELAB_BACKEND_RANKS_WIRE_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace servelab::ranks {

inline constexpr std::size_t kMostTextBytes = 4096;

static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie");

template <class T>
concept Number = std::is_arithmetic_v<T> || std::is_enum_v<T>;

[[noreturn]] void damaged(const std::string& what);

class WireWriter {
 public:
  // Numbers, and vectors of them.
  template <class... T>
  void numbers(const T&... values) {
    (number(values), ...);
  }
  // Of few values, in a byte.
  template <Number T>
  void choice(const T& value, int /*count*/, const char* /*what*/) {
    number(static_cast<std::uint8_t>(value));
  }
  template <class T>
  void list(const std::vector<T>& values, const char* /*what*/) {
    number(static_cast<std::uint32_t>(values.size()));
    for (const T& value : values) each_field(*this, value);
  }
  void require(bool /*holds*/, const char* /*what*/) {}
  void text(std::string_view value);              // cut off at kMostTextBytes
  void bytes(std::span<const std::byte> values);  // without their number

  const std::vector<std::byte>& data() const { return data_; }

 private:
  template <Number T>
  void number(const T& value) {
    bytes(std::as_bytes(std::span(&value, 1)));
  }
  template <Number T>
  void number(const std::vector<T>& values) {
    number(static_cast<std::uint32_t>(values.size()));
    bytes(std::as_bytes(std::span(values)));
  }

  std::vector<std::byte> data_;
};

// Throws GroupError ("a damaged message: ...") for bytes that are not what is asked for.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> data) : rest_(data) {}

  template <class... T>
  void numbers(T&... values) {
    (number(values), ...);
  }
  // One of the first `count` values.
  template <Number T>
  void choice(T& value, int count, const char* what) {
    const auto read = get<std::uint8_t>();
    if (read >= count) damaged(std::string(what) + " is " + std::to_string(read));
    value = static_cast<T>(read);
  }
  template <class T>
  void list(std::vector<T>& values, const char* what) {
    values.resize(count(1, what));
    for (T& value : values) each_field(*this, value);
  }
  void require(bool holds, const char* what) {
    if (!holds) damaged(what);
  }
  void text(std::string& value);
  std::span<const std::byte> bytes(std::size_t count);

  template <Number T>
  T get() {
    T value{};
    number(value);
    return value;
  }
  // How many things follow that take at least `bytes_each`.
  std::size_t count(std::size_t bytes_each, const char* what);
  void end() const;  // nothing may be left

 private:
  void number(bool& value) { choice(value, 2, "a flag"); }
  template <Number T>
  void number(T& value) {
    std::memcpy(&value, bytes(sizeof value).data(), sizeof value);
  }
  template <Number T>
  void number(std::vector<T>& values) {
    values.resize(count(sizeof(T), "numbers"));
    const std::span<const std::byte> from = bytes(values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), from.data(), from.size());
  }

  std::span<const std::byte> rest_;
};

template <class T>
WireWriter encode(const T& value) {
  WireWriter out;
  each_field(out, value);
  return out;
}
template <class T>
T decode(std::span<const std::byte> message) {
  WireReader in(message);
  T value;
  each_field(in, value);
  in.end();
  return value;
}

}  // namespace servelab::ranks

#endif  // SERVELAB_BACKEND_RANKS_WIRE_H_
