// Runs the points of a spec: those that are not cached, several at once, each into a file of its
// own, and then collected.h5. Killing it at any moment loses only the points in progress. Every
// point is locked first (point_locks.h), so that processes that work on one folder share them out.
#ifndef SERVELAB_RUN_RUNNER_H_
#define SERVELAB_RUN_RUNNER_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/run/output_folder.h"
#include "engine/spec/spec.h"

namespace servelab {

namespace ranks {
class RankGroup;
}

// Keys by row, which counts a spec's points by position, technique and seed.
using PointKeys = std::map<std::size_t, std::string>;

struct RunOptions {
  int jobs = 1;
  std::string out = "results";
  std::string data_dir;  // empty: no traces on this machine
  bool force = false;    // compute cached points again
  bool quiet = false;
  bool step_by_step = false;  // ask policies for every step, in virtual time too
  // No point is started that would end after this if it took as long as the longest one so far.
  std::optional<std::chrono::steady_clock::time_point> deadline;
  const std::atomic<int>* stop = nullptr;  // a signal's number: start no more points
  bool compute = true;                     // false: only find what is missing, and collect
  // Compute these rows alone, as collected.h5 counts them, and collect nothing; empty: all.
  std::vector<std::size_t> rows;
  // Of a task that a run handed out: compute these points alone, which must have these keys; leave
  // collecting to others, and points to who locked them.
  const PointKeys* share = nullptr;
  ranks::RankGroup* ranks = nullptr;  // the other processes, where ranks are processes
};

struct MissingPoint {
  std::size_t row = 0;
  std::string key;
  std::string label;
  bool is_real = false;  // on a backend in wall-clock time
};

struct FailedPoint {
  std::string key;  // empty when it failed before it had one
  std::string label;
  std::string message;
  bool is_input = false;  // the spec's or its data's fault
};

struct RunReport {
  std::size_t points = 0;
  std::size_t computed = 0;
  std::size_t cached = 0;
  std::size_t valid = 0;
  std::size_t invalid = 0;
  std::size_t failed = 0;
  std::size_t elsewhere = 0;  // other processes compute them, or tasks that were handed out will
  bool interrupted = false;
  bool out_of_time = false;  // points are left because of the time limit
  std::string unfinished;    // why points are missing that another run may compute; empty: none are
  bool bad_input = false;    // every failure was the spec's or its data's
  double wall_s = 0;
  // Of the points that were computed here: processor time, wall time of those in wall-clock time.
  double slowest_s = 0;
  std::string slowest;  // its label
  std::string folder;
  bool collected = false;      // collected.h5 holds every point
  std::string first_reasons;   // why the first point is INVALID, if it is
  std::size_t of_machine = 0;  // INVALID for this machine's sake: the next run computes them again
  std::vector<FailedPoint> failures;
  std::vector<MissingPoint> missing;  // without `compute`: each once, in the order of computing
};

// Errors of single points are told on stderr and counted. Throws SpecError when nothing can be run,
// or results cannot be written. A collected.h5 of other points than the spec's is removed.
RunReport run_spec(const Spec& spec, const RunOptions& options);
// What runs that share a folder must have in common: the spec's text and the build.
std::string form_of(const Spec& spec);
RunReport run_spec_in(const OutputFolder& folder, const Spec& spec, const RunOptions& options);

}  // namespace servelab

#endif  // SERVELAB_RUN_RUNNER_H_
