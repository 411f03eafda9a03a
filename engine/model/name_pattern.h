// Python regular expressions over module names, as PEFT's settings use them. The time to match
// grows with the pattern's length times the cube of the name's at most, whatever the pattern.
#ifndef SERVELAB_MODEL_NAME_PATTERN_H_
#define SERVELAB_MODEL_NAME_PATTERN_H_

#include <bitset>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace servelab {

// Literals, ., classes, escapes, groups, |, greedy and lazy repetition, ^, $, \b and look-ahead.
class NamePattern {
 public:
  static constexpr std::size_t kLongestName = 255;

  // Throws SpecError, starting with `where`, for what Python refuses and for the rest of its
  // syntax: look-behind, back-references, flags, possessive and atomic groups.
  NamePattern(std::string pattern, const std::string& where);

  // re.fullmatch(pattern, name). A name longer than kLongestName matches nothing.
  bool matches(std::string_view name) const;
  // re.match(rf"(.*\.)?({pattern})$", name)
  bool matches_tail(std::string_view name) const;

 private:
  friend class NamePatternParser;
  friend class NamePatternMatch;

  enum class Kind {
    kClass,
    kStart,
    kEnd,
    kBoundary,
    kNotBoundary,
    kAhead,
    kNotAhead,
    kSequence,
    kChoice,
    kRepeat
  };
  struct Node {
    Kind kind = Kind::kSequence;
    std::bitset<256> accepts;           // kClass
    std::vector<std::size_t> children;  // one for kRepeat, kAhead and kNotAhead
    int least = 0;                      // kRepeat
    int most = 0;                       // kRepeat; -1: any number
  };

  std::vector<Node> nodes_;
  std::size_t root_ = 0;
};

}  // namespace servelab

#endif  // SERVELAB_MODEL_NAME_PATTERN_H_
