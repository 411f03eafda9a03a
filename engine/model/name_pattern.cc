#include "engine/model/name_pattern.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "engine/core/check.h"

namespace servelab {
namespace {

constexpr std::size_t kLongestPattern = 2000;
constexpr int kDeepest = 50;
constexpr int kMostRepeats = 1000;

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

std::bitset<256> single(char c) { return std::bitset<256>().set(static_cast<unsigned char>(c)); }

// \d, \w, \s and their complements, for ASCII.
std::optional<std::bitset<256>> named_class(char name) {
  std::bitset<256> set;
  for (int c = 0; c < 128; ++c) {
    switch (std::tolower(static_cast<unsigned char>(name))) {
      case 'd':
        set[static_cast<std::size_t>(c)] = std::isdigit(c) != 0;
        break;
      case 'w':
        set[static_cast<std::size_t>(c)] = is_word(static_cast<char>(c));
        break;
      case 's':
        set[static_cast<std::size_t>(c)] = std::isspace(c) != 0;
        break;
      default:
        return std::nullopt;
    }
  }
  return std::isupper(static_cast<unsigned char>(name)) != 0 ? ~set : set;
}

}  // namespace

class NamePatternParser {
 public:
  using Node = NamePattern::Node;
  using Kind = NamePattern::Kind;

  NamePatternParser(const std::string& text, const std::string& where, std::vector<Node>* nodes)
      : text_(text), where_(where), nodes_(*nodes) {}

  std::size_t parse() {
    if (text_.size() > kLongestPattern) fail("is too long");
    for (const char c : text_) {
      if (static_cast<unsigned char>(c) > 127) fail("has a character that is not ASCII");
    }
    const std::size_t root = choice(0);
    if (at_ != text_.size()) fail("has a ')' too many");
    return root;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw SpecError(where_ + ": the pattern '" + text_.substr(0, 80) + "' " + what);
  }
  bool more() const { return at_ < text_.size(); }
  bool take(std::string_view token) {
    if (std::string_view(text_).substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }
  char next() {
    if (!more()) fail("ends too early");
    return text_[at_++];
  }
  std::size_t add(Node node) {
    nodes_.push_back(std::move(node));
    return nodes_.size() - 1;
  }
  std::size_t add_class(const std::bitset<256>& accepts) {
    Node node;
    node.kind = Kind::kClass;
    node.accepts = accepts;
    return add(std::move(node));
  }
  std::size_t add_parent(Kind kind, std::vector<std::size_t> children) {
    Node node;
    node.kind = kind;
    node.children = std::move(children);
    return add(std::move(node));
  }

  std::size_t choice(int depth) {
    if (depth > kDeepest) fail("is nested too deeply");
    std::vector<std::size_t> branches = {sequence(depth)};
    while (take("|")) branches.push_back(sequence(depth));
    return branches.size() == 1 ? branches[0] : add_parent(Kind::kChoice, std::move(branches));
  }

  std::size_t sequence(int depth) {
    std::vector<std::size_t> parts;
    while (more() && text_[at_] != '|' && text_[at_] != ')') {
      parts.push_back(repeated(atom(depth)));
    }
    return parts.size() == 1 ? parts[0] : add_parent(Kind::kSequence, std::move(parts));
  }

  std::size_t atom(int depth) {
    const char c = next();
    switch (c) {
      case '(':
        return group(depth);
      case '[':
        return add_class(character_class());
      case '.':
        return add_class(~single('\n'));
      case '^':
        return add_parent(Kind::kStart, {});
      case '$':
        return add_parent(Kind::kEnd, {});
      case '\\':
        return escape();
      case '*':
      case '+':
      case '?':
        fail("has nothing to repeat before '" + std::string(1, c) + "'");
      default:
        return add_class(single(c));
    }
  }

  std::size_t group(int depth) {
    Kind kind = Kind::kSequence;
    if (take("?=")) {
      kind = Kind::kAhead;
    } else if (take("?!")) {
      kind = Kind::kNotAhead;
    } else if (take("?P<")) {
      while (next() != '>') {
        if (!is_word(text_[at_ - 1])) fail("has a bad group name");
      }
    } else if (!take("?:") && take("?")) {
      fail("uses '(?" + std::string(more() ? 1 : 0, more() ? text_[at_] : ' ') +
           "', which servelab does not read; it reads groups, (?:, (?P<name>, (?= and (?!");
    }
    const std::size_t inside = choice(depth + 1);
    if (!take(")")) fail("has a '(' without ')'");
    return kind == Kind::kSequence ? inside : add_parent(kind, {inside});
  }

  std::size_t escape() {
    const char c = next();
    if (c == 'A') return add_parent(Kind::kStart, {});
    if (c == 'Z') return add_parent(Kind::kEnd, {});
    if (c == 'b') return add_parent(Kind::kBoundary, {});
    if (c == 'B') return add_parent(Kind::kNotBoundary, {});
    return add_class(escaped(c));
  }

  std::bitset<256> escaped(char c) const {
    if (const auto set = named_class(c)) return *set;
    if (c == 't') return single('\t');
    if (c == 'n') return single('\n');
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      fail("uses '\\" + std::string(1, c) + "', which servelab does not read");
    }
    return single(c);
  }

  std::bitset<256> character_class() {
    const bool negated = take("^");
    std::bitset<256> set;
    for (bool first = true; first || text_.compare(at_, 1, "]") != 0; first = false) {
      const char low = next();
      if (low == '\\') {
        set |= escaped(next());
        continue;
      }
      set |= single(low);
      if (at_ + 1 >= text_.size() || text_[at_] != '-' || text_[at_ + 1] == ']') continue;
      ++at_;
      const char high = next();
      if (high == '\\' || high < low) fail("has a bad range in a class");
      for (int c = low; c <= high; ++c) set.set(static_cast<std::size_t>(c));
    }
    ++at_;  // the ']'
    return negated ? ~set : set;
  }

  // {m}, {m,}, {,n} or {m,n}; anything else after '{' is literal text, as in Python.
  bool counts(int* least, int* most) {
    const std::size_t close = text_.find('}', at_);
    if (close == std::string::npos) return false;
    const std::string inside = text_.substr(at_, close - at_);
    const std::size_t comma = inside.find(',');
    const auto number = [&](const std::string& digits, int empty) {
      if (digits.empty()) return empty;
      if (digits.size() > 4 || std::stoi(digits) > kMostRepeats) fail("repeats too often");
      return std::stoi(digits);
    };
    const bool numeric = std::all_of(inside.begin(), inside.end(),
                                     [](char c) { return (c >= '0' && c <= '9') || c == ','; });
    if (!numeric || inside.empty() || std::count(inside.begin(), inside.end(), ',') > 1) {
      return false;
    }
    *least = number(inside.substr(0, comma), 0);
    *most = comma == std::string::npos ? *least : number(inside.substr(comma + 1), -1);
    if (*most >= 0 && *most < *least) fail("repeats at most fewer times than at least");
    at_ = close + 1;
    return true;
  }

  bool quantifier(int* least, int* most) {
    *least = 0;
    *most = -1;
    if (take("*")) return true;
    if (take("+")) {
      *least = 1;
      return true;
    }
    if (take("?")) {
      *most = 1;
      return true;
    }
    if (!take("{")) return false;
    if (counts(least, most)) return true;
    --at_;
    return false;
  }

  std::size_t repeated(std::size_t what) {
    Node node;
    node.kind = Kind::kRepeat;
    node.children = {what};
    if (!quantifier(&node.least, &node.most)) return what;
    take("?");  // lazy: the same names match
    const std::size_t before = at_;
    int least = 0;
    int most = 0;
    if (quantifier(&least, &most)) {
      at_ = before;
      fail("repeats a repetition, such as 'a**' or the possessive 'a*+'");
    }
    return add(std::move(node));
  }

  const std::string& text_;
  const std::string& where_;
  std::vector<Node>& nodes_;
  std::size_t at_ = 0;
};

// All ends of a match from each start, computed once for each node and start.
class NamePatternMatch {
 public:
  using Ends = std::bitset<NamePattern::kLongestName + 1>;

  NamePatternMatch(const NamePattern& pattern, std::string_view name)
      : nodes_(pattern.nodes_), name_(name), known_(nodes_.size()) {}

  Ends ends(std::size_t node, std::size_t start) {
    std::vector<std::optional<Ends>>& known = known_[node];
    if (known.empty()) known.resize(name_.size() + 1);
    if (!known[start]) {
      const Ends found = find(nodes_[node], start);
      known[start] = found;
    }
    return *known[start];
  }

 private:
  using Node = NamePattern::Node;
  using Kind = NamePattern::Kind;

  Ends each(std::size_t node, const Ends& starts) {
    Ends all;
    for (std::size_t i = 0; i <= name_.size(); ++i) {
      if (starts[i]) all |= ends(node, i);
    }
    return all;
  }

  bool at_boundary(std::size_t at) const {
    const bool before = at > 0 && is_word(name_[at - 1]);
    const bool after = at < name_.size() && is_word(name_[at]);
    return before != after;
  }

  Ends repeat(const Node& node, std::size_t start) {
    Ends now;
    now.set(start);
    // A round never moves an end back, so the rounds reach a fixed point within the name's length.
    for (int i = 0; i < node.least; ++i) {
      const Ends after = each(node.children[0], now);
      if (after == now) break;
      now = after;
    }
    Ends all = now;
    for (int i = node.least; node.most < 0 || i < node.most; ++i) {
      now = each(node.children[0], now) & ~all;
      if (now.none()) break;
      all |= now;
    }
    return all;
  }

  Ends find(const Node& node, std::size_t start) {
    Ends here;
    here.set(start);
    const auto here_if = [&](bool holds) { return holds ? here : Ends(); };
    switch (node.kind) {
      case Kind::kClass:
        if (start == name_.size()) return {};
        return node.accepts[static_cast<unsigned char>(name_[start])] ? here << 1 : Ends();
      case Kind::kStart:
        return here_if(start == 0);
      case Kind::kEnd:
        return here_if(start == name_.size());
      case Kind::kBoundary:
        return here_if(at_boundary(start));
      case Kind::kNotBoundary:
        return here_if(!at_boundary(start));
      case Kind::kAhead:
        return here_if(ends(node.children[0], start).any());
      case Kind::kNotAhead:
        return here_if(ends(node.children[0], start).none());
      case Kind::kRepeat:
        return repeat(node, start);
      case Kind::kSequence:
        for (const std::size_t child : node.children) here = each(child, here);
        return here;
      case Kind::kChoice: {
        Ends all;
        for (const std::size_t child : node.children) all |= ends(child, start);
        return all;
      }
    }
    return {};
  }

  const std::vector<Node>& nodes_;
  std::string_view name_;
  std::vector<std::vector<std::optional<Ends>>> known_;
};

NamePattern::NamePattern(std::string pattern, const std::string& where) {
  root_ = NamePatternParser(pattern, where, &nodes_).parse();
}

bool NamePattern::matches(std::string_view name) const {
  if (name.size() > kLongestName) return false;
  return NamePatternMatch(*this, name).ends(root_, 0)[name.size()];
}

bool NamePattern::matches_tail(std::string_view name) const {
  if (name.size() > kLongestName) return false;
  NamePatternMatch match(*this, name);
  for (std::size_t start = 0; start <= name.size(); ++start) {
    if (start > 0 && name[start - 1] != '.') continue;
    if (match.ends(root_, start)[name.size()]) return true;
  }
  return false;
}

}  // namespace servelab
