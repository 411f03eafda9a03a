// Where specs and the shared files that they name are found: the experiments folder.
#ifndef SERVELAB_SPEC_LIBRARY_H_
#define SERVELAB_SPEC_LIBRARY_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/check.h"

namespace servelab {

// A shared file that a spec named.
struct NamedFile {
  std::string kind;  // as in Library::find
  std::string name;  // as the spec has it
  std::string path;
};

class Library {
 public:
  // `root` is the experiments folder; it may be absent, then nothing has a name.
  explicit Library(std::string root) : root_(std::move(root)) {}

  // A library that answers with `files` first: copies, which later edits of theirs do not reach.
  Library(std::string root, const std::vector<NamedFile>& files);

  // The library that a spec file belongs to: the nearest folder above it that has a base/ folder,
  // or else `fallback`.
  static Library of_spec(const std::string& spec_path, const std::string& fallback);

  const std::string& root() const { return root_; }

  // The file that `name` means: base/<kind>/<name>.yaml (.h5 of a predictor, .json of a plan), or a
  // path (relative to the file of `where`, or to the working folder) when is_path(). `kind` is
  // engine, model, hardware, whose names may also be those of files beside the file of `where`, or
  // workload; or spec, whose names are those of files beside it, with or without .yaml, and ids.
  // Throws SpecError at `where` with the nearest known name.
  std::string find(const std::string& kind, const std::string& name, const SourceMark& where) const;
  static bool is_path(const std::string& name);  // it has a '/', or ends in .yaml, .yml, .h5, .json
  std::vector<std::string> names(const std::string& kind) const;
  // Every answer of find() so far, here and in this library's copies. Throws SpecError when one
  // name meant two files, as relative paths in different folders can.
  std::vector<NamedFile> found() const;

  std::vector<std::string> spec_ids() const;   // of every spec in the folder
  std::vector<std::string> claim_ids() const;  // of its claims.yaml; none without that file

  // A spec given as a path or as an id such as dlora/fig10. Throws SpecError.
  std::string find_spec(const std::string& path_or_id) const;
  // "dlora/fig10" for <root>/dlora/fig10.yaml; the file's stem outside the folder.
  std::string spec_id(const std::string& path) const;

 private:
  struct Found {
    std::mutex mutex;
    std::multimap<std::pair<std::string, std::string>, std::string> paths;  // by kind and name
  };
  std::string look_up(const std::string& kind, const std::string& name,
                      const SourceMark& where) const;
  std::string look_up_spec(const std::string& name, const SourceMark& where) const;

  std::string root_;
  std::map<std::pair<std::string, std::string>, std::string> copies_;
  std::shared_ptr<Found> found_ = std::make_shared<Found>();
};

}  // namespace servelab

#endif  // SERVELAB_SPEC_LIBRARY_H_
