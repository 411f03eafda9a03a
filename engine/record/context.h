// What a result says about the machine and the program that made it. Never part of a digest.
#ifndef SERVELAB_RECORD_CONTEXT_H_
#define SERVELAB_RECORD_CONTEXT_H_

#include <string>

#include "engine/serve/recorder.h"

namespace servelab {

std::string version_text();  // "0.1.0"

// JSON: machine, processor, compiler, library versions, start time, the point's wall time, of which
// the cluster policy's decisions took `decisions_wall_s`, the accelerator that it ran on, if any,
// and what computed its linear layers, if there was a choice.
std::string context_json(const RunRecord& record, double wall_s, const std::string& device = "",
                         const std::string& kernels = "");

// Lines for `servelab version`; `backends` are those of this build.
std::string version_report(const std::string& backends);

}  // namespace servelab

#endif  // SERVELAB_RECORD_CONTEXT_H_
