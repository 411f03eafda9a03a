#include "engine/jobs/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "engine/core/check.h"
#include "engine/jobs/job.h"
#include "engine/jobs/slurm.h"
#include "engine/record/atomic_file.h"
#include "engine/record/build_id.h"
#include "engine/record/point_file.h"
#include "engine/run/output_folder.h"
#include "engine/run/progress.h"

namespace servelab {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLookAtFiles{250};
constexpr std::chrono::seconds kFirstLookAtQueue{1};
constexpr std::chrono::seconds kLastLookAtQueue{15};

class LocalExecutor : public RunExecutor {
 public:
  explicit LocalExecutor(const RunOptions& run) : run_(run) {}
  void start(const Spec&) override {}
  RunReport finish(const Spec& spec) override { return run_spec(spec, run_); }

 private:
  const RunOptions& run_;
};

// A spec between start() and finish(). Holds the folder, so that two runs do not hand out the same.
struct Started {
  Started(const RunOptions& run, const Spec& spec) : folder(run.out, spec.id, FolderUse::kAlone) {}
  OutputFolder folder;
  Clock::time_point began = Clock::now();
  RunReport plan;
  std::vector<Job> jobs;  // that have missing points
};

class HandingExecutor : public RunExecutor {
 public:
  HandingExecutor(const ExecutorOptions& options, const RunOptions& run)
      : options_(options), run_(run), site_(load_site(options.site)) {
    request_.profile = options.profile;
    request_.quick = options.quick;
    request_.most_tasks = site_.most_tasks;
    const int size = options.points_per_task > 0 ? options.points_per_task : site_.points_per_task;
    if (size > 0) request_.points_per_task = request_.real_points_per_task = size;
  }

 protected:
  void say(const std::string& line) const {
    if (!run_.quiet) fmt::print("{}\n", line);
    std::fflush(stdout);
  }

  // Looks at every point; collects when all are there.
  RunReport look(const Started& at, const Spec& spec, bool quiet) const {
    RunOptions only_look = run_;
    only_look.compute = false;
    only_look.jobs = 1;
    only_look.quiet = quiet;
    only_look.stop = nullptr;  // a look is quick, and what it finds is told after Ctrl-C too
    return run_spec_in(at.folder, spec, only_look);
  }

  RunReport elsewhere(const Spec& spec) const {
    RunReport report = started_.at(spec.id)->plan;
    report.elsewhere = report.missing.size();
    return report;
  }

  const ExecutorOptions options_;
  const RunOptions& run_;
  SiteSettings site_;
  JobRequest request_;
  std::map<std::string, std::unique_ptr<Started>> started_;  // by spec id
};

class EmitExecutor : public HandingExecutor {
 public:
  using HandingExecutor::HandingExecutor;

  void start(const Spec& spec) override {
    auto at = std::make_unique<Started>(run_, spec);
    at->plan = look(*at, spec, run_.quiet);
    if (!at->plan.missing.empty()) emit(spec, *at);
    if (options_.emit != "-") {
      save_atomically(options_.emit, std::as_bytes(std::span(text_.data(), text_.size())));
    }
    started_[spec.id] = std::move(at);
  }

  RunReport finish(const Spec& spec) override { return elsewhere(spec); }

 private:
  void emit(const Spec& spec, const Started& at) {
    const Job job = make_job(at.folder, spec, run_, request_, at.plan.missing);
    save_job(job);
    std::string lines;
    for (std::size_t i = 0; i < job.tasks.size(); ++i) {
      lines += task_command(job, std::to_string(i), site_.cpus) + "\n";
    }
    text_ += lines;
    if (options_.emit == "-") {
      fmt::print("{}", lines);
      std::fflush(stdout);
      return;
    }
    say(
        fmt::format("{}: {} points in {} commands in {}; when they have run, the same command "
                    "without --emit-jobs collects",
                    spec.id, at.plan.missing.size(), job.tasks.size(), options_.emit));
    const std::size_t real = job.tasks.size() - job.virtual_tasks();
    if (real > 0) {
      say(fmt::format("{}: the last {} commands measure time: run one at once per machine", spec.id,
                      real));
    }
  }

  std::string text_;
};

class SlurmExecutor : public HandingExecutor {
 public:
  SlurmExecutor(const ExecutorOptions& options, const RunOptions& run)
      : HandingExecutor(options, run) {
    require_slurm();
  }

  void start(const Spec& spec) override {
    auto at = std::make_unique<Started>(run_, spec);
    at->plan = look(*at, spec, true);
    if (!at->plan.missing.empty()) hand_out(spec, *at);
    started_[spec.id] = std::move(at);
  }

  RunReport finish(const Spec& spec) override {
    const Started& at = *started_.at(spec.id);
    if (at.plan.missing.empty()) return at.plan;
    if (!options_.wait) {
      for (const Job& job : at.jobs) {
        say(fmt::format("{}: look: squeue --name={}; cancel: scancel --name={}", spec.id,
                        job.slurm_name(), job.slurm_name()));
      }
      say(spec.id + ": when its tasks have ended, the same command collects; --wait follows them");
      return elsewhere(spec);
    }
    return wait(spec, at);
  }

 private:
  using Missing = std::map<std::string, std::string>;  // labels by key

  static Missing by_key(const std::vector<MissingPoint>& points) {
    Missing missing;
    for (const MissingPoint& point : points) missing[point.key] = point.label;
    return missing;
  }

  // Submits what no queued task has.
  void hand_out(const Spec& spec, Started& at) {
    Missing left = by_key(at.plan.missing);
    for (Job& job : jobs_of(at.folder)) {
      const bool is_of_these =
          std::any_of(job.tasks.begin(), job.tasks.end(), [&left](const JobTask& task) {
            return std::any_of(task.points.begin(), task.points.end(),
                               [&left](const auto& point) { return left.contains(point.second); });
          });
      if (!is_of_these || job.build != build_id()) continue;  // another build's tasks will refuse
      std::size_t queued = 0;
      for (const QueuedTask& task : queued_tasks(job)) {
        if (task.index < 0 || static_cast<std::size_t>(task.index) >= job.tasks.size()) continue;
        for (const auto& [row, key] : job.tasks[static_cast<std::size_t>(task.index)].points) {
          queued += left.erase(key);
        }
      }
      if (queued == 0) continue;
      say(fmt::format("{}: {} points are queued already, as {}", spec.id, queued,
                      job.slurm_name()));
      at.jobs.push_back(std::move(job));
    }
    std::vector<MissingPoint> points;
    for (const MissingPoint& point : at.plan.missing) {
      if (left.contains(point.key)) points.push_back(point);
    }
    if (points.empty()) return;
    const Job job = make_job(at.folder, spec, run_, request_, points);
    save_job(job);
    const std::string ids = submit_job(job);
    say(fmt::format("{}: {} points in {} tasks of Slurm job {}; logs in {}/logs", spec.id,
                    points.size(), job.tasks.size(), ids, path_for_commands(job.folder)));
    at.jobs.push_back(job);
  }

  // The ids of its arrays.
  std::string submit_job(const Job& job) const {
    std::string ids;
    try {
      for (const bool is_real : {false, true}) {
        const std::string script = slurm_script(job, site_, is_real);
        if (script.empty()) continue;
        const std::string path = job.folder + (is_real ? "/real.sbatch" : "/tasks.sbatch");
        save_atomically(path, std::as_bytes(std::span(script.data(), script.size())));
        ids += (ids.empty() ? "" : ", ") + submit(path);
      }
    } catch (const SpecError&) {
      std::error_code ignored;
      if (ids.empty()) fs::remove_all(job.folder, ignored);
      throw;
    }
    return ids;
  }

  RunReport wait(const Spec& spec, const Started& at) {
    Progress progress(spec.id, at.plan.missing.size(), run_.quiet);
    Missing missing = by_key(at.plan.missing);
    Clock::duration pause = kFirstLookAtQueue;
    Clock::time_point next_look = Clock::now() + pause;
    bool is_over = false;
    bool is_late = false;
    while (true) {
      tell_new(at, &missing, &progress);
      if (missing.empty() || is_over || is_stopped()) break;
      is_late = run_.deadline && Clock::now() > *run_.deadline;
      if (is_late) break;
      if (Clock::now() >= next_look) {
        is_over = have_ended(at, &progress);  // then once more for their last points
        pause = std::min<Clock::duration>(2 * pause, kLastLookAtQueue);
        next_look = Clock::now() + pause;
      } else {
        std::this_thread::sleep_for(kLookAtFiles);
      }
    }
    progress.finish();
    return report_of(spec, at, is_late);
  }

  bool is_stopped() const { return run_.stop != nullptr && run_.stop->load() != 0; }

  void tell_new(const Started& at, Missing* missing, Progress* progress) const {
    // Reading the folder makes a network file system forget which files were not there.
    std::set<std::string> there;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(at.folder.points_path(), error)) {
      if (entry.path().extension() == ".h5") there.insert(entry.path().stem().string());
    }
    for (auto it = missing->begin(); it != missing->end();) {
      PointNews news;
      std::string damage;
      std::optional<StoredPoint> stored;
      if (there.contains(it->first)) {
        stored = read_point(at.folder.point_path(it->first), it->first, &damage);
      }
      if (!stored) {
        ++it;
        continue;
      }
      news.key = it->first;
      news.label = it->second;
      news.status = stored->status;
      news.message = stored->reasons;
      progress->point(news);
      it = missing->erase(it);
    }
  }

  // While squeue does not answer, tasks are taken to go on.
  bool have_ended(const Started& at, Progress* progress) {
    try {
      const bool ended = std::all_of(at.jobs.begin(), at.jobs.end(),
                                     [](const Job& job) { return queued_tasks(job).empty(); });
      is_silent_ = false;
      return ended;
    } catch (const SpecError& error) {
      if (!is_silent_) progress->note(std::string("servelab: warning: ") + error.what());
      is_silent_ = true;
      return false;
    }
  }

  RunReport report_of(const Spec& spec, const Started& at, bool is_late) {
    RunReport report = look(at, spec, run_.quiet);
    report.computed = at.plan.missing.size() - report.missing.size();
    report.cached -= std::min(report.cached, report.computed);
    report.wall_s = std::chrono::duration<double>(Clock::now() - at.began).count();
    if (report.missing.empty()) return report;
    if (is_stopped() || is_late) {
      report.interrupted = is_stopped();
      report.out_of_time = is_late;
      report.elsewhere = report.missing.size();
      for (const Job& job : at.jobs) {
        say(fmt::format("{}: its tasks go on; to cancel them: scancel --name={}", spec.id,
                        job.slurm_name()));
      }
      return report;
    }
    add_failures(spec, at, &report);
    return report;
  }

  // What became of points that are missing although their tasks have ended.
  void add_failures(const Spec& spec, const Started& at, RunReport* report) const {
    std::size_t lost = 0;
    bool is_input = true;
    for (const MissingPoint& point : report->missing) {
      std::optional<FailedPoint> failure;
      for (const Job& job : at.jobs) {
        if (!failure) failure = failure_of(job, point.key);
      }
      if (!failure) {
        ++lost;
        continue;
      }
      fmt::print(stderr, "servelab: error: {} [{}]: {}\n", spec.id, failure->label,
                 failure->message);
      is_input = is_input && failure->is_input;
      report->failures.push_back(std::move(*failure));
    }
    report->failed = report->failures.size();
    report->bad_input = report->failed > 0 && is_input;
    if (lost == 0) return;
    report->unfinished =
        fmt::format("{} points are missing, although their tasks have ended", lost);
    const std::string words = last_words(at.jobs.back());
    report->unfinished +=
        words.empty() ? "; logs: " + at.jobs.back().folder + "/logs" : "; one said: " + words;
  }

  // The last error in a job's logs.
  static std::string last_words(const Job& job) {
    std::string found;
    for (std::size_t i = 0; i < job.tasks.size(); ++i) {
      std::ifstream log(job.log(static_cast<int>(i)));
      for (std::string line; std::getline(log, line);) {
        if (line.find("error: ") != std::string::npos) found = line;
      }
    }
    return found;
  }

  bool is_silent_ = false;
};

void check_options(const ExecutorOptions& options, const RunOptions& run) {
  const bool is_slurm = options.kind == "slurm";
  if (is_slurm && !options.emit.empty()) {
    throw SpecError("--emit-jobs writes commands in place of --executor slurm; leave one out");
  }
  const char* needs = options.wait && !is_slurm     ? "--wait"
                      : !options.is_local()         ? nullptr
                      : options.points_per_task > 0 ? "--points-per-task"
                                                    : nullptr;
  if (needs != nullptr) throw SpecError(std::string(needs) + " goes with --executor slurm");
  if (!options.is_local() && run.force) {
    throw SpecError("--force goes with --executor local; remove the points' files instead");
  }
}

}  // namespace

std::unique_ptr<RunExecutor> make_run_executor(const ExecutorOptions& options,
                                               const RunOptions& run) {
  check_options(options, run);
  if (options.is_local()) return std::make_unique<LocalExecutor>(run);
  if (!options.emit.empty()) return std::make_unique<EmitExecutor>(options, run);
  return std::make_unique<SlurmExecutor>(options, run);
}

}  // namespace servelab
