#include "engine/spec/spec_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <regex>

namespace servelab {
namespace {

constexpr std::size_t kShownCharacters = 60;
constexpr std::size_t kWhole = std::string::npos;

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }
bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }

// Bytes of the UTF-8 character at `at`, 0 when there is none (RFC 3629: no overlong forms, no
// surrogates, nothing beyond U+10FFFF).
std::size_t utf8_length(const std::string& text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(at);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || at + length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if (!is_continuation(text[at + i])) return 0;
  }
  const unsigned second = byte(at + 1);
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
      (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) {
    return 0;
  }
  return length;
}

// Where the first byte stands that is not UTF-8; kWhole when all are.
std::size_t bad_utf8(const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at);
    if (length == 0) return at;
    at += length;
  }
  return kWhole;
}

std::string number_identity(const std::string& written) {
  std::string text;
  std::copy_if(written.begin(), written.end(), std::back_inserter(text),
               [](char c) { return c != '_'; });
  if (!text.empty() && text.front() == '+') text.erase(0, 1);
  const char* end = text.data() + text.size();
  std::int64_t whole = 0;
  const auto [whole_end, whole_error] = std::from_chars(text.data(), end, whole);
  if (whole_error == std::errc() && whole_end == end) return std::to_string(whole);
  double number = 0;
  const auto [real_end, real_error] = std::from_chars(text.data(), end, number);
  if (real_error != std::errc() || real_end != end || !std::isfinite(number)) return "";
  if (number == std::floor(number) && std::abs(number) < 9e15) {
    return std::to_string(static_cast<std::int64_t>(number));
  }
  char buffer[64];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, number).ptr};
}

}  // namespace

std::string in_quotes(const std::string& text) {
  std::string shown;
  std::size_t characters = 0;
  for (const char c : text) {
    if (!is_continuation(c) && ++characters > kShownCharacters) return "'" + shown + "...'";
    shown += is_control(c) ? '?' : c;
  }
  return "'" + shown + "'";
}

std::string shown_text(const ConfigNode& node, const std::string& what) {
  if (!node.is_scalar() || node.scalar.empty()) throw SpecError(node.mark, what + " must be text");
  if (bad_utf8(node.scalar) != kWhole) throw SpecError(node.mark, what + " is not UTF-8");
  if (std::any_of(node.scalar.begin(), node.scalar.end(), is_control)) {
    throw SpecError(node.mark, what + " must be one line without control characters; got " +
                                   in_quotes(node.scalar));
  }
  return node.scalar;
}

bool names_figure(const std::string& text) {
  static const std::regex kForm("[a-z0-9_-]+/[a-z0-9_-]+");
  return text.size() <= 200 && std::regex_match(text, kForm);
}

void check_utf8(const std::string& text, const std::string& path) {
  SourceMark mark{path, 0, 1};
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    const std::string line = text.substr(start, end - start);
    start = end + 1;
    ++mark.line;
    if (const std::size_t at = bad_utf8(line); at != kWhole) {
      mark.column = static_cast<int>(at) + 1;
      throw SpecError(mark, "the file is not UTF-8 here; save it as UTF-8");
    }
  }
}

std::string value_identity(const ConfigNode& node) {
  if (node.is_scalar()) {
    const std::string number = node.quoted ? "" : number_identity(node.scalar);
    return number.empty() ? "'" + node.scalar + "'" : number;
  }
  std::string text = node.is_map() ? "{" : "[";
  for (const ConfigNode& item : node.items) text += value_identity(item) + ",";
  for (const auto& [key, value] : node.members) text += key + ":" + value_identity(value) + ",";
  return text + (node.is_map() ? "}" : "]");
}

}  // namespace servelab
