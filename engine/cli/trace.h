// `servelab run --trace`: what some points of a spec did, as a trace for Perfetto.
#ifndef SERVELAB_CLI_TRACE_H_
#define SERVELAB_CLI_TRACE_H_

#include <string>
#include <vector>

#include "engine/spec/spec.h"

namespace servelab {

// More techniques than these would be too many to look at.
inline constexpr std::size_t kMostTracedPoints = 16;

struct TraceOptions {
  std::string file;               // empty: no trace
  std::vector<std::string> only;  // "technique=dlora", "seed=0", "rate=4": all must hold
  std::vector<double> window_s;   // from, to; empty: the whole run
};

// Throws SpecError when `only` names no point of the spec, when its techniques are more than
// kMostTracedPoints, or when the file has no folder. Of several values of a swept setting, and of
// several seeds, the first is traced unless `only` names one.
void check_trace(const Spec& spec, const TraceOptions& options);

// Writes the trace of points that have run, from their results under `out`. Results hold no steps:
// each point is computed again in virtual time, or replayed from its stamps where its backend is a
// real one, and must make the decisions that its file has. Prints one line. Throws SpecError.
void write_trace(const Spec& spec, const TraceOptions& options, const std::string& out,
                 const std::string& data_dir);

}  // namespace servelab

#endif  // SERVELAB_CLI_TRACE_H_
