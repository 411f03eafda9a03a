// A job: points that a run handed out to tasks elsewhere, frozen in a folder of its own,
//
//   <out>/<spec id>/jobs/<time>-<random>/
//     job.json         build id, spec, working folder, and each task's points with their keys
//     spec.yaml        the spec as run
//     files/           the models, hardware profiles, workloads and specs that it names
//     tasks.sbatch     what was given to Slurm; real.sbatch for backends in wall-clock time
//     logs/<task>.out  what tasks said, appended by each start of theirs
//     failed/<key>     why a point could not be computed
//
// so that later edits of the spec change nothing. What is not copied (traces, folders of models and
// adapters) is in a point's key where it decides results; a point whose key is no longer the one in
// job.json fails, and so does a task whose build id is another. job.json is written last: a folder
// without it is no job. A folder may go as soon as its tasks have ended.
#ifndef SERVELAB_JOBS_JOB_H_
#define SERVELAB_JOBS_JOB_H_

#include <optional>
#include <string>
#include <vector>

#include "engine/run/output_folder.h"
#include "engine/run/runner.h"
#include "engine/spec/library.h"
#include "engine/spec/spec.h"

namespace servelab {

struct JobTask {
  bool is_real = false;  // its points have the machine to themselves
  PointKeys points;
};

struct Job {
  std::string folder;  // absolute
  std::string build;
  std::string spec_id;
  std::string spec_path;
  std::string working_folder;
  std::string library_root;
  std::string profile;  // as --profile; empty: the spec's own hardware
  bool quick = false;
  std::string out;  // absolute
  std::string data_dir;
  std::vector<NamedFile> files;  // the copies
  std::vector<JobTask> tasks;    // those of real backends last

  std::string name() const;           // of the folder
  std::string slurm_name() const;     // of the job in Slurm
  std::size_t virtual_tasks() const;  // before the first of a real backend
  std::string log(int task) const;
};

// What `servelab run` was asked for, besides RunOptions.
struct JobRequest {
  std::string profile;
  bool quick = false;
  int points_per_task = 16;
  int real_points_per_task = 1;
  int most_tasks = 1000;  // more points go into a task when there would be more
};

// Packs the points into tasks and writes the folder, without job.json. Throws SpecError.
Job make_job(const OutputFolder& folder, const Spec& spec, const RunOptions& options,
             const JobRequest& request, const std::vector<MissingPoint>& points);
void save_job(const Job& job);  // writes job.json

// Throws SpecError for a folder that is no job, or a damaged one.
Job read_job(const std::string& folder);
// Every job of a spec's folder, oldest first; those that cannot be read are left out.
std::vector<Job> jobs_of(const OutputFolder& folder);

// The spec as it was; the working folder must be the job's.
Spec spec_of(const Job& job);

// Computes the points of one task that are not there yet: what `servelab work` does. Changes the
// working folder. Throws SpecError for another build or a task that is not there.
RunReport run_task(const Job& job, std::size_t task, RunOptions options);

// Why a point of the job could not be computed, when its task said so.
std::optional<FailedPoint> failure_of(const Job& job, const std::string& key);

}  // namespace servelab

#endif  // SERVELAB_JOBS_JOB_H_
