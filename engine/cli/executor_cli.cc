#include "engine/cli/executor_cli.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "engine/jobs/job.h"
#include "engine/run/point_locks.h"

namespace servelab {

void declare_executor(CLI::App* run, ExecutorOptions* options) {
  run->add_option("--executor", options->kind,
                  "where points are computed: local, or slurm for tasks of a job array")
      ->check(CLI::IsMember({"local", "slurm"}))
      ->capture_default_str();
  run->add_option("--site", options->site,
                  "a YAML file with what tasks need here: partition, account, time, memory, cpus, "
                  "points_per_task, at_once, most_tasks, exclusive, requeue, sbatch, sbatch_real, "
                  "prologue; default: $SERVELAB_SITE")
      ->envname("SERVELAB_SITE");
  run->add_option("--points-per-task", options->points_per_task,
                  "how many points a task computes; default: the site's")
      ->check(CLI::Range(1, 1000000));
  run->add_flag("--wait", options->wait,
                "with slurm: follow the tasks to their end, then collect; Ctrl-C ends the waiting "
                "alone");
  run->add_option("--emit-jobs", options->emit,
                  "compute nothing: write the commands that would, one a line, for GNU parallel or "
                  "another scheduler; - is stdout");
}

CLI::App* declare_work(CLI::App* app, WorkArguments* arguments) {
  CLI::App* work = app->add_subcommand(
      "work", "compute one task of a job that `run --executor` or --emit-jobs made");
  work->allow_extras();
  work->add_option("JOB", arguments->job, "its folder, <out>/<spec id>/jobs/<job>")->required();
  work->add_option("TASK", arguments->task, "its number, from 0")
      ->required()
      ->check(CLI::Range(0, 1000000));
  work->add_option("-j,--jobs", arguments->run.jobs, "points in virtual time at once")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  work->add_flag("-q,--quiet", arguments->run.quiet, "print errors only");
  return work;
}

int work_command(const WorkArguments& arguments) {
  const Job job = read_job(arguments.job);
  const bool is_quiet = arguments.run.quiet;
  if (!is_quiet) {
    fmt::print(stderr, "servelab work: task {} of {}, {}\n", arguments.task, job.name(),
               LockOwner::this_process().name());
  }
  const RunReport report = run_task(job, static_cast<std::size_t>(arguments.task), arguments.run);
  if (!is_quiet) {
    fmt::print(stderr, "servelab work: task {}: {} points: {} run, {} there, {} failed, {} left\n",
               arguments.task, report.points, report.computed, report.cached, report.failed,
               report.points - report.computed - report.cached - report.failed);
  }
  if (report.interrupted) return 128 + arguments.run.stop->load();
  return report.failed == 0 ? 0 : report.bad_input ? 2 : 1;
}

}  // namespace servelab
