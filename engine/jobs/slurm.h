// Slurm, by its own commands: a site's settings, the scripts of a job, and what is in the queue.
#ifndef SERVELAB_JOBS_SLURM_H_
#define SERVELAB_JOBS_SLURM_H_

#include <string>
#include <vector>

#include "engine/core/params.h"
#include "engine/jobs/job.h"

namespace servelab {

// One file per site, as YAML; everything has a default, which is Slurm's own where it has one.
struct SiteSettings {
  std::string partition;
  std::string account;
  std::string time;
  std::string memory;
  int cpus = 1;
  int points_per_task = 0;
  int at_once = 0;
  int most_tasks = 1000;
  std::string exclusive = "real";
  bool requeue = true;
  std::vector<std::string> sbatch;
  std::vector<std::string> sbatch_real;
  std::string prologue;
  void fields(ParamFields& f);
};

// Throws SpecError with the place of what is wrong. Defaults when `path` is empty.
SiteSettings load_site(const std::string& path);

// The script that submits the virtual or the real tasks of a job; empty when there are none.
std::string slurm_script(const Job& job, const SiteSettings& site, bool is_real);

// A command for a shell that computes one task, with the number as the shell is to read it.
std::string task_command(const Job& job, const std::string& task, int jobs);
std::string shell_quoted(const std::string& text);

// Throws SpecError, in one line, when Slurm's commands are not on PATH.
void require_slurm();

// Submits a script; its job id. Throws SpecError with what sbatch said.
std::string submit(const std::string& script_path);

struct QueuedTask {
  int index = 0;
  std::string state;   // PENDING, RUNNING, ...
  std::string reason;  // why it is pending
};

// The tasks of a job that have not ended. Throws SpecError when squeue does not answer.
std::vector<QueuedTask> queued_tasks(const Job& job);

}  // namespace servelab

#endif  // SERVELAB_JOBS_SLURM_H_
