// Python regular expressions over module names, as PEFT's settings use them, matched by PCRE2. A
// pattern that takes too long ends in a SpecError after some hundredths of a second.
//
// Only what both languages define alike is read: literals, ., classes, groups, (?P<name>, |, greedy
// and lazy repetition, ^, $, look-ahead, and the escapes \A \b \B \d \D \s \S \t \n \w \W and those
// of punctuation. Python reads three things otherwise than PCRE2, which is told what it means:
//   {,n}          up to n times (before PCRE2 10.43: literal text)
//   { elsewhere   literal text (since PCRE2 10.43 blanks may stand between the braces)
//   [ in a class  itself ([:alpha:] are those characters)
// Refused is what only one of them reads, or each in its own way: (?...) of any other kind
// (look-behind, flags, atomic groups, conditions, comments, back-references by name), (*VERB),
// possessive and repeated repetition, repeated anchors, and every other escape: back-references,
// \Z (for PCRE2 also before a last line feed), \Q, \K, \x and the rest. So are patterns that are
// not ASCII, longer than 2000 characters, or nested more than 50 groups deep. One difference is
// left: \B matches an empty name, as in Python since 3.14; no module has one.
#ifndef SERVELAB_MODEL_NAME_PATTERN_H_
#define SERVELAB_MODEL_NAME_PATTERN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;

namespace servelab {

class NamePattern {
 public:
  static constexpr std::size_t kLongestName = 255;

  // Throws SpecError, starting with `where`, for what is refused.
  NamePattern(const std::string& pattern, const std::string& where);

  // Both throw SpecError, starting with `where`, when finding the answer takes too long. A name
  // longer than kLongestName matches nothing. Threads may share a pattern.
  bool matches(std::string_view name) const;       // re.fullmatch(pattern, name)
  bool matches_tail(std::string_view name) const;  // re.match(rf"(.*\.)?({pattern})$", name)

 private:
  using Code = std::shared_ptr<const pcre2_real_code_8>;

  Code compile(const std::string& text, std::uint32_t options, std::uint32_t deepest) const;
  bool run(const Code& code, std::string_view name) const;

  std::string subject_;  // of messages: where, and the pattern
  Code whole_;
  Code tail_;
};

}  // namespace servelab

#endif  // SERVELAB_MODEL_NAME_PATTERN_H_
