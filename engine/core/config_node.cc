#include "engine/core/config_node.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace servelab {
namespace {

constexpr std::uintmax_t kMostYamlBytes = std::uintmax_t{16} << 20;

constexpr int kMaxDepth = 64;
constexpr int kMaxNodes = 1'000'000;  // aliases can blow a small file up
constexpr const char* kTooDeep = "nested deeper than 64 levels";
constexpr const char* kTooMany = "more than a million values";

SourceMark mark_of(const YAML::Mark& mark, const std::string& file) {
  if (mark.is_null()) return {file, 0, 0};
  return {file, mark.line + 1, mark.column + 1};
}

// Reads through a text before any of it is kept, which takes hundreds of bytes a value.
class LimitCheck final : public YAML::EventHandler {
 public:
  explicit LimitCheck(const std::string& file) : file_(file) {}
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { count(mark); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { count(mark); }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                const std::string&) override {
    count(mark);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    enter(mark);
  }
  void OnSequenceEnd() override { --depth_; }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    enter(mark);
  }
  void OnMapEnd() override { --depth_; }

 private:
  void count(const YAML::Mark& mark) {
    if (++values_ > kMaxNodes) throw SpecError(mark_of(mark, file_), kTooMany);
  }
  void enter(const YAML::Mark& mark) {
    count(mark);
    if (++depth_ > kMaxDepth + 1) throw SpecError(mark_of(mark, file_), kTooDeep);
  }
  const std::string& file_;
  int values_ = 0;
  int depth_ = 0;
};

void check_limits(const std::string& text, const std::string& file) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  LimitCheck check(file);
  while (parser.HandleNextDocument(check)) {
  }
}

// What is being parsed.
struct Source {
  const std::string& text;
  const std::string& file;
  int nodes = 0;  // so far
};

// Takes what `over`, a null in another map, stands for out of `base`.
void drop(const std::string& key, const ConfigNode& over, ConfigNode* base) {
  if (over.scalar.empty()) {
    throw SpecError(over.mark, "'" + key + "' has no value; null drops what is inherited");
  }
  if (base->erase(key)) return;
  std::vector<std::string> known;
  for (const auto& [name, value] : base->members) known.push_back(name);
  throw SpecError(over.mark, "'" + key + "' is null, which drops what is inherited; nothing is " +
                                 "inherited by that name; " + suggest(key, known));
}

// YAML takes a plain `null` for nothing, although a name may be spelled so.
bool is_spelled_null(const YAML::Mark& mark, const std::string& text) {
  constexpr std::string_view kNull = "null";
  const std::size_t skipped = text.starts_with("\xEF\xBB\xBF") ? 3 : 0;  // not in positions
  const std::size_t at = static_cast<std::size_t>(mark.pos) + skipped;
  if (mark.is_null() || at > text.size() || text.compare(at, kNull.size(), kNull) != 0)
    return false;
  const std::size_t end = at + kNull.size();
  return end == text.size() || std::string_view(" \t\r\n,]}#").find(text[end]) != std::string::npos;
}

ConfigNode convert(const YAML::Node& yaml, Source* source, int depth) {
  const std::string& file = source->file;
  ConfigNode node;
  node.mark = mark_of(yaml.Mark(), file);
  if (depth > kMaxDepth) throw SpecError(node.mark, kTooDeep);
  if (++source->nodes > kMaxNodes) throw SpecError(node.mark, kTooMany);
  switch (yaml.Type()) {
    case YAML::NodeType::Undefined:
      break;
    case YAML::NodeType::Null:
      if (is_spelled_null(yaml.Mark(), source->text)) node.scalar = "null";
      break;
    case YAML::NodeType::Scalar:
      node.kind = ConfigNode::Kind::kScalar;
      node.scalar = yaml.Scalar();
      node.quoted = yaml.Tag() == "!";
      break;
    case YAML::NodeType::Sequence:
      node.kind = ConfigNode::Kind::kList;
      for (const YAML::Node& item : yaml) node.items.push_back(convert(item, source, depth + 1));
      break;
    case YAML::NodeType::Map: {
      node.kind = ConfigNode::Kind::kMap;
      std::unordered_set<std::string_view> keys;
      for (const auto& member : yaml) {
        const YAML::Node& key = member.first;
        const YAML::Node& value = member.second;
        const SourceMark at = mark_of(key.Mark(), file);
        if (!key.IsScalar()) throw SpecError(at, "a key must be plain text");
        if (!keys.insert(key.Scalar()).second) {
          throw SpecError(at, "key '" + key.Scalar() + "' is given twice");
        }
        ConfigNode child = convert(value, source, depth + 1);
        child.mark = at;  // messages about a value point at its key
        node.members.push_back({key.Scalar(), std::move(child)});
      }
      break;
    }
  }
  return node;
}

bool is_json_number(const std::string& text) {
  std::size_t i = text.size() > 1 && text[0] == '-' ? 1 : 0;
  if (i >= text.size() || text[i] < '0' || text[i] > '9') return false;
  if (text[i] == '0' && i + 1 < text.size() && text[i + 1] >= '0' && text[i + 1] <= '9') {
    return false;
  }
  bool seen_point = false;
  bool seen_exponent = false;
  for (; i < text.size(); ++i) {
    const char c = text[i];
    if (c >= '0' && c <= '9') continue;
    if (c == '.' && !seen_point && !seen_exponent && i + 1 < text.size()) {
      seen_point = true;
    } else if ((c == 'e' || c == 'E') && !seen_exponent && i + 1 < text.size()) {
      seen_exponent = true;
      if ((text[i + 1] == '-' || text[i + 1] == '+') && i + 2 < text.size()) ++i;
    } else {
      return false;
    }
  }
  return text.back() != '.';
}

void append_json_string(const std::string& text, std::string* out) {
  *out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      *out += '\\';
      *out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
      *out += escaped;
    } else {
      *out += c;
    }
  }
  *out += '"';
}

void append_json(const ConfigNode& node, std::string* out) {
  switch (node.kind) {
    case ConfigNode::Kind::kNull:
      *out += "null";
      return;
    case ConfigNode::Kind::kScalar:
      if (!node.quoted &&
          (node.scalar == "true" || node.scalar == "false" || is_json_number(node.scalar))) {
        *out += node.scalar;
      } else {
        append_json_string(node.scalar, out);
      }
      return;
    case ConfigNode::Kind::kList: {
      *out += '[';
      bool first = true;
      for (const ConfigNode& item : node.items) {
        if (!first) *out += ',';
        first = false;
        append_json(item, out);
      }
      *out += ']';
      return;
    }
    case ConfigNode::Kind::kMap: {
      std::vector<const ConfigMember*> sorted;
      for (const auto& member : node.members) sorted.push_back(&member);
      std::sort(sorted.begin(), sorted.end(),
                [](const auto* a, const auto* b) { return a->key < b->key; });
      *out += '{';
      bool first = true;
      for (const auto* member : sorted) {
        if (!first) *out += ',';
        first = false;
        append_json_string(member->key, out);
        *out += ':';
        append_json(member->value, out);
      }
      *out += '}';
      return;
    }
  }
}

}  // namespace

ConfigNode ConfigNode::map() {
  ConfigNode node;
  node.kind = Kind::kMap;
  return node;
}

ConfigNode ConfigNode::list() {
  ConfigNode node;
  node.kind = Kind::kList;
  return node;
}

ConfigNode ConfigNode::of(const std::string& text, bool quoted) {
  ConfigNode node;
  node.kind = Kind::kScalar;
  node.scalar = text;
  node.quoted = quoted;
  return node;
}

const ConfigNode* ConfigNode::find(const std::string& key) const {
  for (const auto& [name, value] : members) {
    if (name == key) return &value;
  }
  return nullptr;
}

ConfigNode* ConfigNode::find(const std::string& key) {
  return const_cast<ConfigNode*>(std::as_const(*this).find(key));
}

void ConfigNode::set(const std::string& key, ConfigNode value) {
  kind = Kind::kMap;
  if (ConfigNode* existing = find(key)) {
    *existing = std::move(value);
  } else {
    members.push_back({key, std::move(value)});
  }
}

bool ConfigNode::erase(const std::string& key) {
  return std::erase_if(members, [&](const ConfigMember& member) { return member.key == key; }) > 0;
}

void ConfigNode::set_path(const std::string& dotted_path, const ConfigNode& value) {
  const std::size_t dot = dotted_path.find('.');
  if (dot == std::string::npos) {
    set(dotted_path, value);
    return;
  }
  const std::string head = dotted_path.substr(0, dot);
  if (find(head) == nullptr || find(head)->is_null()) set(head, map());
  ConfigNode* child = find(head);
  if (!child->is_map()) {
    throw SpecError(value.mark, "cannot set '" + dotted_path + "': '" + head + "' is not a map");
  }
  child->set_path(dotted_path.substr(dot + 1), value);
}

void merge_over(ConfigNode* base, const ConfigNode& over) {
  for (const auto& [key, value] : over.members) {
    ConfigNode* below = base->find(key);
    if (value.is_null()) {
      drop(key, value, base);
    } else if (below != nullptr && below->is_map() && value.is_map()) {
      merge_over(below, value);
      below->mark = value.mark;
    } else {
      base->set(key, value);
    }
  }
}

ConfigNode parse_yaml(const std::string& text, const std::string& name_for_errors) {
  try {
    check_limits(text, name_for_errors);
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    if (documents.size() > 1) {
      throw SpecError(mark_of(documents[1].Mark(), name_for_errors),
                      "a second YAML document begins here; a file holds one");
    }
    Source source{text, name_for_errors};
    if (!documents.empty()) return convert(documents.front(), &source, 0);
    ConfigNode nothing;
    nothing.mark = {name_for_errors, 1, 1};
    return nothing;
  } catch (const YAML::Exception& error) {
    throw SpecError(mark_of(error.mark, name_for_errors), "not valid YAML: " + error.msg);
  }
}

ConfigNode parse_yaml_file(const std::string& path) {
  return parse_yaml(read_yaml_file(path), path);
}

std::string read_yaml_file(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw SpecError(path + ": is a folder, expected a YAML file");
  }
  const std::uintmax_t bytes = std::filesystem::file_size(path, ignored);
  if (!ignored && bytes > kMostYamlBytes) {
    throw SpecError(path + ": has " + std::to_string(bytes) + " bytes, more than the " +
                    std::to_string(kMostYamlBytes) +
                    " of a spec; put what is long into a trace or a profile that it names");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) throw SpecError(path + ": cannot be read; check the path");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string canonical_json(const ConfigNode& node) {
  std::string out;
  append_json(node, &out);
  return out;
}

}  // namespace servelab
