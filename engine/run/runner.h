// Runs the points of a spec: those that are not cached, several at once, each into a file of its
// own, and then collected.h5. Killing it at any moment loses only the points in progress.
#ifndef SERVELAB_RUN_RUNNER_H_
#define SERVELAB_RUN_RUNNER_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "engine/run/spec.h"

namespace servelab {

struct RunOptions {
  int jobs = 1;
  std::string out = "results";
  std::string data_dir;  // empty: no traces on this machine
  bool force = false;    // compute cached points again
  bool quiet = false;
  // No point is started that would end after this if it took as long as the longest one so far.
  std::optional<std::chrono::steady_clock::time_point> deadline;
  const std::atomic<int>* stop = nullptr;  // a signal's number: start no more points
};

struct RunReport {
  std::size_t points = 0;
  std::size_t computed = 0;
  std::size_t cached = 0;
  std::size_t valid = 0;
  std::size_t invalid = 0;
  std::size_t failed = 0;
  bool interrupted = false;
  bool out_of_time = false;  // points are left because of the time limit
  bool bad_input = false;    // every failure was the spec's or its data's
  double wall_s = 0;
  std::string folder;
  bool collected = false;     // collected.h5 holds every point
  std::string first_reasons;  // why the first point is INVALID, if it is
};

// Errors of single points are told on stderr and counted. Throws SpecError when nothing can be run,
// or results cannot be written. A collected.h5 of other points than the spec's is removed.
RunReport run_spec(const Spec& spec, const RunOptions& options);

}  // namespace servelab

#endif  // SERVELAB_RUN_RUNNER_H_
