// Where specs and the shared files that they name are found: the experiments folder.
#ifndef SERVELAB_RUN_LIBRARY_H_
#define SERVELAB_RUN_LIBRARY_H_

#include <string>
#include <vector>

#include "engine/core/check.h"

namespace servelab {

class Library {
 public:
  // `root` is the experiments folder; it may be absent, then nothing has a name.
  explicit Library(std::string root) : root_(std::move(root)) {}

  // The library that a spec file belongs to: the nearest folder above it that has a base/ folder,
  // or else `fallback`.
  static Library of_spec(const std::string& spec_path, const std::string& fallback);

  const std::string& root() const { return root_; }

  // The file that `name` means: base/<kind>/<name>.yaml, or a path (relative to the file of
  // `where`, or to the working folder) when it has a '/' or ends in .yaml. `kind` is model,
  // hardware or workload. Throws SpecError at `where` with the nearest known name.
  std::string find(const std::string& kind, const std::string& name, const SourceMark& where) const;
  std::vector<std::string> names(const std::string& kind) const;

  std::vector<std::string> spec_ids() const;   // of every spec in the folder
  std::vector<std::string> claim_ids() const;  // of its claims.yaml; none without that file

  // A spec given as a path or as an id such as dlora/fig10. Throws SpecError.
  std::string find_spec(const std::string& path_or_id) const;
  // "dlora/fig10" for <root>/dlora/fig10.yaml; the file's stem outside the folder.
  std::string spec_id(const std::string& path) const;

 private:
  std::string root_;
};

}  // namespace servelab

#endif  // SERVELAB_RUN_LIBRARY_H_
