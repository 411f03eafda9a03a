#include "engine/spec/library.h"

#include <algorithm>
#include <filesystem>

#include "engine/spec/spec_text.h"

namespace servelab {
namespace {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}
bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}
// Why `path` is not a file that can be read as one; empty when nothing is there.
std::string what_stands_at(const fs::path& path) {
  std::error_code ignored;
  if (is_folder(path)) return path.string() + " is a folder";
  return fs::exists(path, ignored) ? path.string() + " is not a regular file" : "";
}
bool is_yaml(const std::string& name) { return name.ends_with(".yaml") || name.ends_with(".yml"); }

// What files of a kind end in.
std::string extension_of(const std::string& kind) { return kind == "predictor" ? ".h5" : ".yaml"; }

// The files of a folder that end so, without that.
std::vector<std::string> stems_in(const fs::path& folder, const std::string& end = ".yaml") {
  std::vector<std::string> stems;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == end) stems.push_back(entry.path().stem().string());
  }
  std::sort(stems.begin(), stems.end());
  return stems;
}

}  // namespace

Library Library::of_spec(const std::string& spec_path, const std::string& fallback) {
  std::error_code error;
  const fs::path absolute = fs::weakly_canonical(spec_path, error);
  fs::path relative = fs::path(spec_path).parent_path();
  for (fs::path folder = absolute.parent_path(); !error; folder = folder.parent_path()) {
    if (is_folder(folder / "base")) {
      // Keep the path as the user wrote it where possible: it appears in messages.
      std::error_code ignored;
      while (!relative.empty() && !fs::equivalent(relative, folder, ignored)) {
        if (relative == relative.parent_path()) break;
        relative = relative.parent_path();
      }
      const bool same = !relative.empty() && fs::equivalent(relative, folder, ignored);
      return Library((same ? relative : folder).string());
    }
    if (folder == folder.parent_path()) break;
  }
  return Library(fallback);
}

Library::Library(std::string root, const std::vector<NamedFile>& files) : root_(std::move(root)) {
  for (const NamedFile& file : files) copies_[{file.kind, file.name}] = file.path;
}

std::string Library::find(const std::string& kind, const std::string& name,
                          const SourceMark& where) const {
  const auto copy = copies_.find({kind, name});
  if (copy != copies_.end()) return copy->second;
  const std::string path = look_up(kind, name, where);
  const std::lock_guard lock(found_->mutex);
  const auto [first, last] = found_->paths.equal_range({kind, name});
  const bool is_known =
      std::any_of(first, last, [&](const auto& entry) { return entry.second == path; });
  if (!is_known) found_->paths.insert({{kind, name}, path});
  return path;
}

std::vector<NamedFile> Library::found() const {
  const std::lock_guard lock(found_->mutex);
  std::vector<NamedFile> files;
  for (const auto& [of, path] : found_->paths) {
    if (!files.empty() && files.back().kind == of.first && files.back().name == of.second) {
      throw SpecError(of.first + " " + in_quotes(of.second) + " means " + files.back().path +
                      " in one place and " + path + " in another; give one of them another name");
    }
    files.push_back({of.first, of.second, path});
  }
  return files;
}

std::string Library::look_up(const std::string& kind, const std::string& name,
                             const SourceMark& where) const {
  if (kind == "spec") return look_up_spec(name, where);
  if (is_path(name)) {
    const fs::path beside = fs::path(where.file).parent_path() / name;
    if (is_file(beside)) return beside.string();
    if (is_file(name)) return name;
    for (const fs::path& path : {beside, fs::path(name)}) {
      const std::string other = what_stands_at(path);
      if (!other.empty())
        throw SpecError(where,
                        kind + ": " + other + ", expected a " + extension_of(kind) + " file");
    }
    throw SpecError(where, kind + " file " + in_quotes(name) + " does not exist; looked for " +
                               beside.string() + (beside == fs::path(name) ? "" : " and " + name));
  }
  const fs::path path = fs::path(root_) / "base" / kind / (name + extension_of(kind));
  if (is_file(path)) return path.string();
  const fs::path beside = fs::path(where.file).parent_path() / (name + ".yaml");
  if (kind == "hardware" && is_file(beside)) return beside.string();
  throw SpecError(where, "unknown " + kind + " " + in_quotes(name) + "; " +
                             suggest(name, names(kind)) + " (files in " +
                             path.parent_path().string() + ")");
}

std::string Library::look_up_spec(const std::string& name, const SourceMark& where) const {
  const fs::path folder = fs::path(where.file).parent_path();
  const std::string file = is_yaml(name) ? name : name + ".yaml";
  for (const fs::path& path : {folder / file, fs::path(root_) / file}) {
    if (is_file(path)) return path.lexically_normal().string();
  }
  const bool is_beside = name.find('/') == std::string::npos;
  throw SpecError(
      where, "no spec " + in_quotes(name) + " beside this file or in " + root_ + "; " +
                 suggest(name, is_beside ? stems_in(folder.empty() ? "." : folder) : spec_ids()));
}

bool Library::is_path(const std::string& name) {
  return name.find('/') != std::string::npos || is_yaml(name) || name.ends_with(".h5") ||
         name.ends_with(".json");
}

std::vector<std::string> Library::names(const std::string& kind) const {
  return stems_in(fs::path(root_) / "base" / kind, extension_of(kind));
}

std::vector<std::string> Library::spec_ids() const {
  std::vector<std::string> ids;
  std::error_code error;
  for (auto it = fs::recursive_directory_iterator(root_, error);
       !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    if (it.depth() == 0 && it->path().filename() == "base") {
      it.disable_recursion_pending();
    } else if (it.depth() > 0 && it->path().extension() == ".yaml") {
      ids.push_back(spec_id(it->path().string()));
    }
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<std::string> Library::claim_ids() const {
  const fs::path path = fs::path(root_) / "claims.yaml";
  std::vector<std::string> ids;
  if (!is_file(path)) return ids;
  for (const auto& [id, claim] : parse_yaml_file(path.string()).members) ids.push_back(id);
  return ids;
}

std::string Library::find_spec(const std::string& path_or_id) const {
  if (is_file(path_or_id)) return path_or_id;
  const fs::path by_id = fs::path(root_) / (path_or_id + ".yaml");
  if (is_file(by_id)) return by_id.string();
  if (is_folder(path_or_id)) {
    throw SpecError(path_or_id + ": is a folder; name spec files in it, such as " + path_or_id +
                    "/*.yaml");
  }
  if (const std::string other = what_stands_at(path_or_id); !other.empty()) {
    throw SpecError(other + ", expected a YAML file");
  }
  std::string name = path_or_id;
  if (name.ends_with(".yaml")) name = spec_id(name);
  throw SpecError(path_or_id + ": no such spec; " + suggest(name, spec_ids()));
}

std::string Library::spec_id(const std::string& path) const {
  std::error_code error;
  const fs::path file = fs::weakly_canonical(path, error);
  const fs::path relative = file.lexically_relative(fs::weakly_canonical(root_, error));
  if (file.stem() == "." || file.stem() == "..") {
    throw SpecError(path + ": a spec's file needs a name before .yaml: results are called by it");
  }
  if (relative.empty() || *relative.begin() == "..") return fs::path(path).stem().string();
  return (relative.parent_path() / relative.stem()).generic_string();
}

}  // namespace servelab
