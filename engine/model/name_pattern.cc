#include "engine/model/name_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <iterator>

#include "engine/core/check.h"

namespace servelab {
namespace {

constexpr std::size_t kLongestPattern = 2000;
constexpr std::uint32_t kDeepest = 50;  // groups inside each other
constexpr std::size_t kMostDigits = 3;  // of a number of repetitions

// Of one match. Patterns in use take tens of steps.
constexpr std::uint32_t kMostSteps = 200'000;
constexpr std::uint32_t kMostDepth = 50'000;
constexpr std::uint32_t kMostKibibytes = 16 * 1024;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_one_of(std::string_view set, char c) { return set.find(c) != std::string_view::npos; }

// From Python's syntax to the same in PCRE2's; refuses what the two read differently. Whether the
// rest is a regular expression, PCRE2 says.
class Translation {
 public:
  Translation(const std::string& text, const std::string& subject)
      : text_(text), subject_(subject) {}

  std::string pcre2() {
    if (text_.size() > kLongestPattern) fail("is too long");
    while (more()) {
      const char c = next();
      switch (c) {
        case '\\':
          escape();
          break;
        case '[':
          character_class();
          break;
        case '(':
          group();
          break;
        case '*':
        case '+':
        case '?':
          repetition(std::string(1, c));
          break;
        case '{':
          brace();
          break;
        case '^':
        case '$':
        case '|':
          put(std::string(1, c), Last::kNothing);
          break;
        default:
          put(std::string(1, c), Last::kItem);
      }
    }
    return out_;
  }

 private:
  enum class Last { kNothing, kItem, kRepetition };  // nothing that can be repeated

  [[noreturn]] void fail(const std::string& what) const { throw SpecError(subject_ + what); }
  bool more() const { return at_ < text_.size(); }
  char next() {
    if (!more()) fail("ends too early");
    const char c = text_[at_++];
    if (static_cast<unsigned char>(c) > 127) fail("has a character that is not ASCII");
    return c;
  }
  bool take(std::string_view token) {
    if (std::string_view(text_).substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }
  void put(std::string_view text, Last last) {
    out_ += text;
    last_ = last;
  }

  void escape() {
    const char c = next();
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 && !is_one_of("AbBdDsStnwW", c)) {
      fail("uses '\\" + std::string(1, c) + "', which servelab does not read");
    }
    put(std::string{'\\', c}, is_one_of("AbB", c) ? Last::kNothing : Last::kItem);
  }

  void character_class() {
    put("[", Last::kNothing);
    if (take("^")) out_ += '^';
    for (bool first = true;; first = false) {
      const char c = next();
      if (c == '\\') {
        escape();
      } else {
        out_ += c == '[' ? "\\[" : std::string(1, c);
      }
      if (c == ']' && !first) break;
    }
    last_ = Last::kItem;
  }

  void group() {
    for (const std::string_view start : {"?:", "?=", "?!", "?P<"}) {
      if (!take(start)) continue;
      put("(" + std::string(start), Last::kNothing);
      return;
    }
    if (take("?")) {
      fail("uses '(?" + (more() ? std::string(1, next()) : "") +
           "', which servelab does not read; it reads groups, (?:, (?P<name>, (?= and (?!");
    }
    put("(", Last::kNothing);
  }

  // {m}, {m,}, {,n} or {m,n}; anything else is literal text.
  void brace() {
    const std::size_t begin = at_;
    const auto digits = [&] {
      const std::size_t from = at_;
      while (more() && is_digit(text_[at_])) ++at_;
      return text_.substr(from, at_ - from);
    };
    const std::string least = digits();
    const bool is_range = take(",");
    const std::string most = is_range ? digits() : "";
    if (!take("}") || (least.empty() && !is_range)) {
      at_ = begin;
      put("\\{", Last::kItem);
      return;
    }
    if (std::max(least.size(), most.size()) > kMostDigits) fail("repeats too often");
    repetition("{" + (least.empty() ? "0" : least) + (is_range ? "," : "") + most + "}");
  }

  void repetition(const std::string& times) {
    if (last_ == Last::kNothing) fail("has nothing to repeat before '" + times + "'");
    if (last_ == Last::kRepetition || (more() && text_[at_] == '+')) {
      fail("repeats a repetition, such as 'a**' or the possessive 'a*+'");
    }
    put(times, Last::kRepetition);
    if (take("?")) out_ += '?';  // lazy
  }

  const std::string& text_;
  const std::string& subject_;
  std::string out_;
  std::size_t at_ = 0;
  Last last_ = Last::kNothing;
};

template <class T, void (*kFree)(T*)>
struct Free {
  void operator()(T* what) const { kFree(what); }
};
template <class T, void (*kFree)(T*)>
using Owned = std::unique_ptr<T, Free<T, kFree>>;

std::string text_of(int error) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(error, text, std::size(text));
  return reinterpret_cast<const char*>(text);
}

// Its beginning, on one line.
std::string shown(const std::string& pattern) {
  std::string text = pattern.substr(0, 80);
  for (char& c : text) {
    if (std::iscntrl(static_cast<unsigned char>(c)) != 0) c = '?';
  }
  return text;
}

PCRE2_SPTR units_of(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data() != nullptr ? text.data() : "");
}

}  // namespace

NamePattern::NamePattern(const std::string& pattern, const std::string& where)
    : subject_(where + ": the pattern '" + shown(pattern) + "' ") {
  const std::string text = Translation(pattern, subject_).pcre2();
  whole_ = compile(text, PCRE2_ENDANCHORED, kDeepest);
  tail_ = compile("(?:.*\\.)?(?:" + text + ")$", 0, kDeepest + 1);
}

NamePattern::Code NamePattern::compile(const std::string& text, std::uint32_t options,
                                       std::uint32_t deepest) const {
  const Owned<pcre2_compile_context, pcre2_compile_context_free> context(
      pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);  // the one that Python's . and $ know
  pcre2_set_parens_nest_limit(context.get(), deepest);
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* code =
      pcre2_compile(units_of(text), text.size(), options | PCRE2_ANCHORED | PCRE2_NO_AUTO_CAPTURE,
                    &error, &at, context.get());
  if (code == nullptr) throw SpecError(subject_ + "cannot be read: " + text_of(error));
  return {code, pcre2_code_free};
}

bool NamePattern::run(const Code& code, std::string_view name) const {
  if (name.size() > kLongestName) return false;
  const Owned<pcre2_match_context, pcre2_match_context_free> context(
      pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(context.get(), kMostSteps);
  pcre2_set_depth_limit(context.get(), kMostDepth);
  pcre2_set_heap_limit(context.get(), kMostKibibytes);
  const Owned<pcre2_match_data, pcre2_match_data_free> found(pcre2_match_data_create(1, nullptr));
  const int result =
      pcre2_match(code.get(), units_of(name), name.size(), 0, 0, found.get(), context.get());
  if (result >= 0) return true;
  if (result == PCRE2_ERROR_NOMATCH) return false;
  throw SpecError(subject_ + "takes too long for '" + std::string(name) + "': " + text_of(result));
}

bool NamePattern::matches(std::string_view name) const { return run(whole_, name); }

bool NamePattern::matches_tail(std::string_view name) const { return run(tail_, name); }

}  // namespace servelab
