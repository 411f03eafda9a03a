#include "engine/spec/extends.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <vector>

#include "engine/core/check.h"
#include "engine/core/yaml_writer.h"
#include "engine/spec/spec_text.h"
#include "engine/spec/sweep.h"

namespace servelab {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxExtended = 8;

using Chain = std::vector<std::string>;  // paths: a spec, what it extends, what that extends, ...

bool is_same(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  return fs::equivalent(a, b, ignored);
}

fs::path folder_of(const std::string& path) {
  std::error_code ignored;
  return fs::absolute(path, ignored).parent_path();
}

// `null` is a backend and a technique, and to YAML nothing at all: where they are named, the name.
void read_null_as_name(ConfigNode* node) {
  const auto name = [](ConfigNode* value) {
    if (!value->is_null() || value->scalar != "null") return;
    value->kind = ConfigNode::Kind::kScalar;
    value->quoted = true;
  };
  for (auto& [key, value] : node->members) {
    if (key == "backend" || key == "technique" || key == "techniques" || key == "label") {
      name(&value);
      for (ConfigNode& item : value.items) name(&item);
    }
    read_null_as_name(&value);
  }
  for (ConfigNode& item : node->items) read_null_as_name(&item);
}

// An unclosed quote runs to the next quote or to the end of the file, over the keys in between.
void check_title_ends(const ConfigNode& root) {
  const ConfigNode* title = root.find("title");
  if (title == nullptr || !title->quoted) return;
  const auto is_swallowed = [&](const char* key) {
    return title->scalar.find(std::string(key) + ":") != std::string::npos;
  };
  if (root.find("model") != nullptr || root.find("extends") != nullptr) return;
  if (!is_swallowed("model") && !is_swallowed("extends")) return;
  throw SpecError(title->mark, "'title' runs on over the lines after it: its quote is not closed");
}

ConfigNode read_one(const std::string& yaml, const std::string& path) {
  ConfigNode root = parse_yaml(yaml, path);
  read_null_as_name(&root);
  if (!root.is_map()) throw SpecError(SourceMark{path, 1, 1}, "a spec must be a map of settings");
  check_utf8(yaml, path);
  check_title_ends(root);
  return root;
}

std::string ids_of(const Chain& chain, const Library& library, const char* between) {
  std::string ids;
  for (const std::string& path : chain) {
    ids += (ids.empty() ? "" : between) + in_quotes(library.spec_id(path));
  }
  return ids;
}

// Finds what the last spec of the chain extends, and adds it.
void add_extended(const ConfigNode& name, const Library& library, Chain* chain) {
  if (!name.is_scalar() || name.scalar.empty()) {
    throw SpecError(name.mark,
                    "'extends' must be one name: of a spec beside this one such as "
                    "fig10, an id such as dlora/fig10, or a path");
  }
  const std::string path = library.find("spec", name.scalar, name.mark);
  const bool is_known = std::any_of(chain->begin(), chain->end(),
                                    [&](const std::string& other) { return is_same(path, other); });
  chain->push_back(path);
  const auto told = [&] { return ": " + ids_of(*chain, library, " -> "); };
  if (is_known) throw SpecError(name.mark, "'extends' goes round in a circle" + told());
  if (chain->size() > kMaxExtended + 1) {
    throw SpecError(name.mark, "'extends' leads over more than eight specs" + told());
  }
}

// Makes names of files beside the spec that has them absolute, for the spec elsewhere that has them
// now. They may stand wherever a section can be set: at the top, in the workload and in the sweep.
void make_files_absolute(ConfigNode* node) {
  const auto make_absolute = [](ConfigNode* name) {
    if (!name->is_scalar() || !Library::is_path(name->scalar)) return;
    const fs::path beside = fs::path(name->mark.file).parent_path() / name->scalar;
    std::error_code ignored;
    if (!fs::is_regular_file(beside, ignored)) return;
    name->scalar = fs::absolute(beside).lexically_normal().string();
  };
  for (auto& [key, value] : node->members) {
    if (key == "model" || key == "hardware" || key == "workload" || key == "extends" ||
        key == "like") {
      make_absolute(&value);
      for (ConfigNode& item : value.items) make_absolute(&item);
    }
    make_files_absolute(&value);
  }
  for (ConfigNode& item : node->items) make_files_absolute(&item);
}

// What a spec leaves to its variants; `id` is its own.
void keep_inheritable(const std::string& id, const SourceMark& where, ConfigNode* root) {
  for (const char* key : {"description", "expect", "quick"}) root->erase(key);
  const ConfigNode* figure = root->find("figure");
  if ((figure == nullptr || figure->is_null()) && names_figure(id)) {
    ConfigNode own = ConfigNode::of(id, false);
    own.mark = where;
    root->set("figure", std::move(own));
  }
}

// Puts a variant over what it extends.
void merge_variant(const ConfigNode& variant, const Library& library, ConfigNode* root) {
  if (variant.find("title") == nullptr) root->erase("title");
  const auto forget = [root](const char* key) {  // its value, not its place
    if (ConfigNode* value = root->find(key)) *value = ConfigNode();
  };
  if (variant.find("sweep") != nullptr) forget("sweep");
  if (const ConfigNode* workload = variant.find("workload")) {
    if (workload->is_map() && workload->find("extends") == nullptr) {
      resolve_workload(root, library);
    } else {
      forget("workload");
    }
  }
  merge_over(root, variant);
  root->mark = variant.mark;
}

// The last spec of the chain over all that it extends, which joins the chain.
ConfigNode over_extended(ConfigNode root, const Library& library, Chain* chain) {
  const ConfigNode* named = root.find("extends");
  if (named == nullptr) return root;
  const SourceMark where = named->mark;
  add_extended(*named, library, chain);
  root.erase("extends");
  const std::string path = chain->back();
  ConfigNode extended = read_one(read_yaml_file(path), path);
  if (!is_same(folder_of(path), folder_of(chain->front()))) make_files_absolute(&extended);
  extended = over_extended(std::move(extended), library, chain);
  keep_inheritable(library.spec_id(path), where, &extended);
  merge_variant(root, library, &extended);
  return extended;
}

}  // namespace

WholeSpec read_whole_spec(const std::string& yaml, const std::string& path,
                          const Library& library) {
  Chain chain = {path};
  ConfigNode root = over_extended(read_one(yaml, path), library, &chain);
  if (chain.size() == 1) return {std::move(root), yaml};
  const Chain extended(chain.begin() + 1, chain.end());
  std::string text = "# " + in_quotes(library.spec_id(path)) +
                     " over what it extends: " + ids_of(extended, library, " over ") + "\n" +
                     write_yaml(root);
  return {std::move(root), std::move(text)};
}

}  // namespace servelab
