// Where the points of a spec are computed: in this process, or by tasks that it hands out.
//
// A run that hands out finds the points that are missing and that no queued task has, packs them
// into a job (job.h), and submits that as an array, or writes its tasks as commands. Each
// task is `servelab work JOB TASK`: it refuses another build, locks its points one by one
// (point_locks.h), skips those that are there, and leaves those that another process computes.
// Nobody coordinates: whatever is killed, or whoever runs beside it, the next run of the same spec
// hands out what is missing. collected.h5 is written by the run that finds every point there.
//
// start() returns when tasks are queued. finish() then either says how to look, and reports the
// points as elsewhere, or with `wait` follows them until they are there or their tasks have ended.
// Ctrl-C ends the waiting alone; the tasks go on, and the message says how to cancel them.
#ifndef SERVELAB_JOBS_EXECUTOR_H_
#define SERVELAB_JOBS_EXECUTOR_H_

#include <memory>
#include <string>

#include "engine/run/runner.h"
#include "engine/spec/spec.h"

namespace servelab {

struct ExecutorOptions {
  std::string kind = "local";  // or slurm
  std::string site;            // a site file; empty: none
  int points_per_task = 0;     // 0: the site's
  bool wait = false;
  std::string emit;     // a file for commands, in place of an executor; "-": stdout
  std::string profile;  // as given to the run, for its tasks
  bool quick = false;

  bool is_local() const { return kind == "local" && emit.empty(); }
};

// Specs are started in order, and then finished. Both throw SpecError.
class RunExecutor {
 public:
  virtual ~RunExecutor() = default;
  virtual void start(const Spec& spec) = 0;
  virtual RunReport finish(const Spec& spec) = 0;
};

// `run` must outlive it. Throws SpecError for options that do not go together, a bad site file, or
// when Slurm is not there.
std::unique_ptr<RunExecutor> make_run_executor(const ExecutorOptions& options,
                                               const RunOptions& run);

}  // namespace servelab

#endif  // SERVELAB_JOBS_EXECUTOR_H_
