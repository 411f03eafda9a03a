// What a result says about the machine and the program that made it. Never part of a digest.
#ifndef SERVELAB_RECORD_CONTEXT_H_
#define SERVELAB_RECORD_CONTEXT_H_

#include <optional>
#include <string>

#include "engine/serve/recorder.h"

namespace servelab {

std::string version_text();  // "0.1.0"

// What a run in wall-clock time has besides the machine.
struct RanOn {
  std::string device;   // the accelerator; empty: none
  std::string kernels;  // what computed its linear layers; empty: there was no choice
  // Of the processor time that it asked for, what it did not get; none where it is not known.
  std::optional<double> processor_loss;
};

// JSON: machine, processor, compiler, library versions, start time, the point's wall time, of which
// the cluster policy's decisions took `decisions_wall_s`, and `ran_on`.
std::string context_json(const RunRecord& record, double wall_s, const RanOn& ran_on = {});

// Lines for `servelab version`; `backends` are those of this build.
std::string version_report(const std::string& backends);

}  // namespace servelab

#endif  // SERVELAB_RECORD_CONTEXT_H_
