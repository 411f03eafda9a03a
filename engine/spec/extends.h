// `extends:` at the top of a spec: another spec, of which it is a variant.
#ifndef SERVELAB_SPEC_EXTENDS_H_
#define SERVELAB_SPEC_EXTENDS_H_

#include <string>

#include "engine/core/config_node.h"
#include "engine/spec/library.h"

namespace servelab {

// A spec together with all that it extends.
struct WholeSpec {
  ConfigNode root;   // without `extends`; each value remembers the file that it is from
  std::string yaml;  // a spec that says the same and extends nothing: as written if it never did
};

// Reads a spec's text; `path` is where it stands. What it extends lies under it:
//   - maps are merged, as merge_over() does it; a workload's map also with a named workload;
//   - lists, `sweep`, and a workload that is a name or extends one replace what was there;
//   - title, description, expect and quick are not inherited; `figure` is, and the figure of a spec
//     that names none is its id.
// Throws SpecError for a text that is no spec, a name that is none, a circle, and a way over more
// than eight specs.
WholeSpec read_whole_spec(const std::string& yaml, const std::string& path, const Library& library);

}  // namespace servelab

#endif  // SERVELAB_SPEC_EXTENDS_H_
