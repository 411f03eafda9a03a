// Runs as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open: Chrome's Trace Event
// Format, in JSON.
//
// Each replica of each run is a process. Its steps are slices, one thread per step in flight, and
// hold what came before computing: waiting for a load, moving KV, switching weights. Loads and
// requests (queued, prefill, decode) are asynchronous slices; evictions, preemptions and rejections
// are instants; running and waiting requests, KV blocks and resident adapters are counters. A
// further process per run has the cluster policy's decisions and migrations, as arrows between
// replicas too.
#ifndef SERVELAB_RECORD_TRACE_FILE_H_
#define SERVELAB_RECORD_TRACE_FILE_H_

#include <limits>
#include <span>
#include <string>

#include "engine/core/units.h"
#include "engine/serve/recorder.h"
#include "engine/workload/workload.h"

namespace servelab {

struct TracedRun {
  std::string label;  // tells runs apart
  const Workload* workload = nullptr;
  const RunRecord* record = nullptr;  // with RecorderOptions::steps
  TimeNs migration_delay = 0;
};

// What overlaps [from, to] is in the trace, whole.
struct TraceWindow {
  TimeNs from = 0;
  TimeNs to = std::numeric_limits<TimeNs>::max();
};

// The JSON text. Runs share one time axis, which starts with each of them.
std::string trace_json(std::span<const TracedRun> runs, const TraceWindow& window);

}  // namespace servelab

#endif  // SERVELAB_RECORD_TRACE_FILE_H_
