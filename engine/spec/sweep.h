// `sweep:` of a spec: dotted paths with lists of values. Several paths give their cross product,
// the first one slowest; `zip:` holds a list of maps whose values change together. A list of such
// maps gives the positions of all of them, on the same paths; `techniques:` in a map holds the
// labels of those that run there, and `sample:` keeps a share of the positions, always the same
// ones.
#ifndef SERVELAB_SPEC_SWEEP_H_
#define SERVELAB_SPEC_SWEEP_H_

#include <string>
#include <utility>
#include <vector>

#include "engine/core/config_node.h"
#include "engine/spec/library.h"
#include "engine/spec/spec.h"

namespace servelab {

// Replaces a workload's name, or its `extends: name`, by what the named file holds, with the map's
// own values on top. `settings` is the tree whose `workload` is meant.
void resolve_workload(ConfigNode* settings, const Library& library);

// Sets the paths of a spec's `quick:` in `settings`; its `seeds` and `sweep` are not settings.
void shorten(const ConfigNode& quick, const Library& library, ConfigNode* settings);

// Every position of the sweep over `settings`; one position without coordinates when `sweep` is
// null. `labels` are the techniques', `swept` receives the paths. Throws SpecError.
std::vector<SweepPosition> expand_sweep(const ConfigNode& settings, const ConfigNode* sweep,
                                        const std::vector<std::string>& labels,
                                        const Library& library, std::vector<std::string>* swept);

}  // namespace servelab

#endif  // SERVELAB_SPEC_SWEEP_H_
