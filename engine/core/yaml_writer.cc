#include "engine/core/yaml_writer.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstddef>

namespace servelab {
namespace {

constexpr std::size_t kColumns = 100;
constexpr std::size_t kIndent = 2;

void write_scalar(const ConfigNode& node, YAML::Emitter* out) {
  if (node.quoted) *out << YAML::DoubleQuoted;
  *out << node.scalar;
}

void write_line(const ConfigNode& node, YAML::Emitter* out) {
  switch (node.kind) {
    case ConfigNode::Kind::kNull:
      *out << YAML::Null;
      return;
    case ConfigNode::Kind::kScalar:
      write_scalar(node, out);
      return;
    case ConfigNode::Kind::kList:
      *out << YAML::Flow << YAML::BeginSeq;
      for (const ConfigNode& item : node.items) write_line(item, out);
      *out << YAML::EndSeq;
      return;
    case ConfigNode::Kind::kMap:
      *out << YAML::Flow << YAML::BeginMap;
      for (const auto& [key, value] : node.members) {
        *out << YAML::Key << key << YAML::Value;
        write_line(value, out);
      }
      *out << YAML::EndMap;
      return;
  }
}

std::size_t length_of_line(const ConfigNode& node) {
  YAML::Emitter line;
  line.SetNullFormat(YAML::LowerNull);
  write_line(node, &line);
  return line.size();
}

bool has_map(const ConfigNode& node) {
  if (node.is_map()) return true;
  return std::any_of(node.items.begin(), node.items.end(), has_map);
}

// As people write specs: an entry of a list on one line, but of a map only what holds no map.
bool is_line(const ConfigNode& node, std::size_t column, bool is_item) {
  if (!node.is_list() && !node.is_map()) return true;
  if (node.items.empty() && node.members.empty()) return true;
  const bool nests =
      node.is_list()
          ? has_map(node)
          : std::any_of(node.members.begin(), node.members.end(),
                        [](const ConfigMember& member) { return has_map(member.value); });
  return (!nests || (is_item && node.is_map())) && column + length_of_line(node) <= kColumns;
}

// `column` is where the node's own text begins, `indent` where its block would.
void write(const ConfigNode& node, std::size_t indent, std::size_t column, bool is_item,
           YAML::Emitter* out) {
  if (is_line(node, column, is_item)) {
    write_line(node, out);
  } else if (node.is_list()) {
    *out << YAML::Block << YAML::BeginSeq;
    for (const ConfigNode& item : node.items) {
      write(item, indent + kIndent, indent + kIndent, true, out);
    }
    *out << YAML::EndSeq;
  } else {
    *out << YAML::Block << YAML::BeginMap;
    for (const auto& [key, value] : node.members) {
      *out << YAML::Key << key << YAML::Value;
      write(value, indent + kIndent, indent + key.size() + 2, false, out);
    }
    *out << YAML::EndMap;
  }
}

}  // namespace

std::string write_yaml(const ConfigNode& node) {
  YAML::Emitter out;
  out.SetNullFormat(YAML::LowerNull);
  // Nothing of a whole file fits beside anything: its first level has a line for each key.
  write(node, 0, kColumns, false, &out);
  SL_CHECK(out.good(), out.GetLastError());
  return std::string(out.c_str(), out.size()) + "\n";
}

}  // namespace servelab
