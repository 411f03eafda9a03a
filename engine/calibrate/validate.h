// `servelab validate`: one spec on a real engine and on the twin, the same requests on both, and
// how far they are apart (twin_errors.h).
#ifndef SERVELAB_CALIBRATE_VALIDATE_H_
#define SERVELAB_CALIBRATE_VALIDATE_H_

#include <string>
#include <vector>

#include "engine/calibrate/measured_rows.h"
#include "engine/calibrate/twin_errors.h"
#include "engine/record/summary.h"
#include "engine/run/runner.h"
#include "engine/spec/spec.h"

namespace servelab {

// Of one point. Throughput counts prompt and output tokens; NaN where the run has no value.
Outcome outcome_of(const Summary& summary);

struct ValidateOptions {
  std::string backend = "cpu";  // of specs that do not sweep it: the engine
  std::string limits;
  std::string measured;  // CSV (measured_rows.h): runs of a server that is not ours, in its place
  RunOptions run;
};

// Gives every position of a spec that does not sweep `backend` both of them: the engine and the
// twin. Its results then have an id of their own.
void add_backends(const std::string& engine, Spec* spec);

// Pairs every twin of a finished run with its engine point: same technique, seed and coordinates,
// but for backend, hardware and workload.lengths.
std::vector<ValidatedPoint> paired_points(const Spec& spec, const RunOptions& options);

// Gives a spec a position for each row, and pairs the twin of each, when it has run, and whoever
// else predicted it with what was measured. SpecError, before anything runs, for a row that no
// position can have.
void add_rows(const MeasuredRows& rows, Spec* spec);
std::vector<ValidatedPoint> measured_points(const Spec& spec, const MeasuredRows& rows,
                                            const RunOptions& options);

// Runs what is not cached, prints both tables and writes validation.csv and validation_points.csv
// into the spec's results. True when every regime of the judged twins is supported.
bool validate(Spec spec, const ValidateOptions& options);

}  // namespace servelab

#endif  // SERVELAB_CALIBRATE_VALIDATE_H_
