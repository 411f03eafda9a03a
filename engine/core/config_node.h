// A parsed settings tree that remembers where each value stood, so that a bad value can be
// reported by file, line and column long after parsing. YAML in, canonical JSON out.
#ifndef SERVELAB_CORE_CONFIG_NODE_H_
#define SERVELAB_CORE_CONFIG_NODE_H_

#include <string>
#include <vector>

#include "engine/core/check.h"

namespace servelab {

struct ConfigMember;

struct ConfigNode {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  std::string scalar;   // of kNull: "null" where it is written so
  bool quoted = false;  // a quoted scalar is always a string
  std::vector<ConfigNode> items;
  std::vector<ConfigMember> members;  // in file order, keys unique
  SourceMark mark;

  static ConfigNode map();
  static ConfigNode list();
  static ConfigNode of(const std::string& text, bool quoted = true);

  bool is_null() const { return kind == Kind::kNull; }
  bool is_scalar() const { return kind == Kind::kScalar; }
  bool is_list() const { return kind == Kind::kList; }
  bool is_map() const { return kind == Kind::kMap; }

  const ConfigNode* find(const std::string& key) const;  // null when absent
  ConfigNode* find(const std::string& key);
  void set(const std::string& key, ConfigNode value);  // replaces or appends
  bool erase(const std::string& key);                  // false when absent

  // "a.b.c": creates the maps on the way. Throws SpecError where a scalar stands in the way.
  void set_path(const std::string& dotted_path, const ConfigNode& value);
};

struct ConfigMember {
  std::string key;
  ConfigNode value;
};

// Sets every member of `over` in `base`; maps that both have are merged in the same way, and a
// `null` drops what `base` has. Throws SpecError where there is nothing to drop.
void merge_over(ConfigNode* base, const ConfigNode& over);

// Parses a YAML file or text. Throws SpecError with the place for malformed YAML, duplicate keys,
// aliases' cycles, or an unreadable file.
ConfigNode parse_yaml_file(const std::string& path);
ConfigNode parse_yaml(const std::string& text, const std::string& name_for_errors);
std::string read_yaml_file(const std::string& path);  // its text; throws SpecError

// JSON with map keys sorted and numbers as written: equal settings give equal text.
std::string canonical_json(const ConfigNode& node);

}  // namespace servelab

#endif  // SERVELAB_CORE_CONFIG_NODE_H_
