// Measurements of a server that is not ours, beside a spec that describes it. A CSV file, a row for
// each measurement; its columns are
//   keys of the spec, which the row sets (engine.adapter_slots, workload.adapters.count); a list is
//     written [1.6 0.8 0.4], an empty cell leaves what the spec says;
//   measured.tokens_per_s, measured.itl_s, measured.ttft_s, measured.latency_s (or _ms): of a whole
//     run, prompt and output tokens of finished requests, means over tokens and requests;
//     measured.out_of_memory: 1 where it did not start;
//     measured.load_s (or _ms): one adapter's load from host memory;
//   step.decodes, step.prefill_tokens, step.adapters, step.context, step.waiting: rows that have
//     them are single steps, whose measured.itl_s is the step's time; or, with
//     measured.scheduling_s (or _ms), the scheduler's part of it;
//   NAME.tokens_per_s, NAME.itl_s, NAME.ttft_s, NAME.out_of_memory: what somebody else predicts;
//   part: a profile is fitted to rows `fitted` and judged by rows `judged`, where a file has this
//     column; what other rows are for, any other word says;
//   source: where a row is from; rows are ranked among those of one source.
#ifndef SERVELAB_CALIBRATE_MEASURED_ROWS_H_
#define SERVELAB_CALIBRATE_MEASURED_ROWS_H_

#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/config_node.h"
#include "engine/spec/spec.h"

namespace servelab {

// Of one run. NaN: not known.
struct Outcome {
  double tokens_per_s = std::numeric_limits<double>::quiet_NaN();  // prompt and output
  double itl_s = std::numeric_limits<double>::quiet_NaN();
  double ttft_s = std::numeric_limits<double>::quiet_NaN();
  double busy_share = std::numeric_limits<double>::quiet_NaN();  // time in steps, of the whole run
  bool out_of_memory = false;                                    // it did not start
  double latency_s = std::numeric_limits<double>::quiet_NaN();
};

// One step: sums over its requests.
struct MeasuredStep {
  double decodes = 0;         // requests that decode
  double prefill_tokens = 0;  // of prompts
  double adapters = 0;        // distinct ones
  double context = 0;         // mean keys of a decode
  double waiting = 0;         // requests, outside the step
};

struct MeasuredRow {
  int line = 0;
  std::vector<std::pair<std::string, ConfigNode>> settings;  // by key
  std::optional<MeasuredStep> step;                          // none: a whole run
  Outcome measured;
  double scheduling_s = std::numeric_limits<double>::quiet_NaN();  // of a step
  double load_s = std::numeric_limits<double>::quiet_NaN();
  std::map<std::string, Outcome> predicted;  // by who
  std::string part, source;

  bool is_fitted() const { return part.empty() || part == "fitted"; }
  bool is_judged() const { return part.empty() || part == "judged"; }

  // Whether it tells how a whole run went.
  bool is_run() const;
};

struct MeasuredRows {
  std::string path;
  std::vector<MeasuredRow> rows;
};

// Throws SpecError with file, line and column's name: columns that are neither, values that are no
// numbers, and times that only another unit explains.
MeasuredRows read_measured_rows(const std::string& path);

// The position that a row describes: `spec`'s only one, with the row's settings. Throws SpecError
// where the spec has a sweep or more than one technique or seed.
SweepPosition position_of(const Spec& spec, const MeasuredRow& row);

}  // namespace servelab

#endif  // SERVELAB_CALIBRATE_MEASURED_ROWS_H_
