// Checks of a whole spec before anything runs.
#ifndef SERVELAB_RUN_SPEC_CHECK_H_
#define SERVELAB_RUN_SPEC_CHECK_H_

#include <string>

#include "engine/spec/spec.h"

namespace servelab {

// Checks everything that can be checked without running: every position with every technique, and
// the first workload or all. Throws SpecError.
void check_spec(const Spec& spec, const std::string& data_dir, bool every_workload);

// What to do when a workload of the spec does not fit into memory.
std::string too_little_memory(const Spec& spec);

// Throws SpecError when the file that an option is to write is a YAML file that is there: a spec
// was named where a new file was to be.
void check_not_a_spec(const std::string& option, const std::string& file);

}  // namespace servelab

#endif  // SERVELAB_RUN_SPEC_CHECK_H_
