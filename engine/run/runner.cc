#include "engine/run/runner.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "engine/core/digest.h"
#include "engine/core/threads.h"
#include "engine/record/atomic_file.h"
#include "engine/record/build_id.h"
#include "engine/record/collected_file.h"
#include "engine/record/context.h"
#include "engine/run/collection.h"
#include "engine/run/point.h"
#include "engine/run/point_locks.h"
#include "engine/run/progress.h"
#include "engine/run/real_run.h"
#include "engine/run/spec_check.h"
#include "engine/run/workload_cache.h"

namespace servelab {
namespace {

// Results could not be written: no other point would fare better.
class SaveError : public SpecError {
 public:
  using SpecError::SpecError;
};

struct Task {
  std::size_t position = 0;
  std::size_t technique = 0;
  std::size_t seed = 0;
  std::size_t row = 0;  // in spec order: position, technique, seed
  bool is_real = false;
};

// How an attempt at a point ended.
enum class Attempt { kDone, kNoTime, kMissing, kBusy, kUnclear };

constexpr std::chrono::milliseconds kAskAgain{200};

double thread_cpu_s() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class SpecRun {
 public:
  SpecRun(const OutputFolder& folder, const Spec& spec, const RunOptions& options)
      : spec_(spec),
        options_(options),
        folder_(folder),
        locks_(folder.points_path(), rules(options)),
        workloads_(spec, options.data_dir),
        started_(std::chrono::steady_clock::now()),
        collection_(spec, folder) {
    list_tasks();
    if (options.share == nullptr) collection_.forget_other_spec();
    progress_.emplace(spec.id, tasks_.size(), options.quiet);
  }

  RunReport run() {
    const auto real =
        std::find_if(tasks_.begin(), tasks_.end(), [](const auto& t) { return t.is_real; });
    run_phase({tasks_.begin(), real}, static_cast<std::size_t>(options_.jobs));
    run_phase({real, tasks_.end()}, 1);  // a real engine has the machine to itself
    progress_->finish();
    if (save_error_) throw SaveError(*save_error_);
    return finish();
  }

 private:
  // A run that nobody shares the folder with may do without locks where these cannot be made.
  static LockRules rules(const RunOptions& options) {
    LockRules rules;
    rules.without_links = options.share == nullptr;
    return rules;
  }

  bool collects() const { return options_.share == nullptr && options_.rows.empty(); }
  bool is_asked_for(std::size_t row) const {
    if (options_.share != nullptr) return options_.share->contains(row);
    return options_.rows.empty() ||
           std::find(options_.rows.begin(), options_.rows.end(), row) != options_.rows.end();
  }

  // Points that share a workload follow each other; those in wall-clock time come last.
  void list_tasks() {
    const std::size_t seeds = spec_.seeds.size();
    std::size_t first_row = 0;
    for (std::size_t p = 0; p < spec_.positions.size(); ++p) {
      const std::vector<std::size_t>& techniques = spec_.positions[p].techniques;
      const ConfigNode* backend = spec_.positions[p].settings.find("backend");
      const bool is_real_one = backend != nullptr && is_real(backend->scalar);
      for (std::size_t s = 0; s < seeds; ++s) {
        for (std::size_t i = 0; i < techniques.size(); ++i) {
          const std::size_t row = first_row + i * seeds + s;
          if (!is_asked_for(row)) continue;
          tasks_.push_back(Task{p, techniques[i], s, row, is_real_one});
          workloads_.add_user(p, s);
        }
      }
      first_row += techniques.size() * seeds;
    }
    std::stable_partition(tasks_.begin(), tasks_.end(), [](const Task& t) { return !t.is_real; });
  }

  bool stopping() const {
    return save_failed_ || (options_.stop != nullptr && options_.stop->load() != 0);
  }

  // Whether a point as long as the longest so far would end after the deadline.
  bool out_of_time() {
    if (!options_.deadline) return false;
    const std::lock_guard lock(mutex_);
    if (std::chrono::steady_clock::now() + longest_point_ <= *options_.deadline) return false;
    report_.out_of_time = is_out_of_time_ = true;
    return true;
  }

  // The tasks, then again those whose points others had locked, until they are there.
  void run_phase(std::vector<Task> tasks, std::size_t jobs) {
    while (!tasks.empty() && !stopping() && !is_out_of_time_) {
      next_task_ = 0;
      const auto more = static_cast<int>(std::min(jobs, tasks.size())) - 1;
      std::vector<std::thread> threads;
      try {
        threads = start_threads(
            more, [this, &tasks](int) { work(tasks); }, [] {});
      } catch (const MachineError&) {  // those that there was room for have done it all
      }
      work(tasks);
      for (std::thread& thread : threads) thread.join();
      tasks = std::exchange(deferred_, {});
      if (tasks.empty()) return;
      if (options_.share == nullptr && !std::exchange(told_to_wait_, true)) {
        progress_->note("servelab: " + spec_.id + ": waiting for " + std::to_string(tasks.size()) +
                        " points that others compute, such as " + holder_);
      }
      std::this_thread::sleep_for(kAskAgain);
    }
  }

  void work(const std::vector<Task>& tasks) {
    while (!stopping()) {
      const std::size_t next = next_task_++;
      if (next >= tasks.size()) return;
      PointNews news;
      const Task& task = tasks[next];
      Attempt attempt = Attempt::kDone;
      try {
        attempt = do_task(task, &news);
      } catch (const SaveError& error) {
        const std::lock_guard lock(mutex_);
        save_failed_ = true;
        if (!save_error_) save_error_ = error.what();
        return;
      } catch (const MachineError& error) {
        fail(task, &news, error.what(), false);
      } catch (const SpecError& error) {
        fail(task, &news, error.what(), true);
      } catch (const std::bad_alloc&) {
        fail(task, &news, too_little_memory(spec_) + ", or run fewer points at once with -j 1",
             false);
      } catch (const std::exception& error) {
        fail(task, &news, error.what(), false);
      }
      if (!is_put_off(attempt, task)) workloads_.release(task.position, task.seed);
      if (attempt != Attempt::kDone) continue;
      const std::lock_guard lock(mutex_);
      if (!save_failed_) progress_->point(news);
    }
  }

  // Whether the task is to be tried again. A share's points are left to others who compute them.
  bool is_put_off(Attempt attempt, const Task& task) {
    if (attempt != Attempt::kBusy && attempt != Attempt::kUnclear) return false;
    const std::lock_guard lock(mutex_);
    if (attempt == Attempt::kBusy && options_.share != nullptr) {
      ++report_.elsewhere;
      return false;
    }
    deferred_.push_back(task);
    return true;
  }

  void fail(const Task& task, PointNews* news, const std::string& message, bool is_input) {
    news->outcome = PointOutcome::kFailed;
    news->label = label_of(task);
    news->message = message;
    const std::lock_guard lock(mutex_);
    ++report_.failed;
    const std::string& key = options_.share != nullptr ? options_.share->at(task.row) : news->key;
    report_.failures.push_back({key, news->label, message, is_input});
  }

  std::string label_of(const Task& task) const {
    std::string text = spec_.techniques[task.technique].label;
    const std::string position = spec_.positions[task.position].text();
    if (!position.empty()) text += " " + position;
    return text + " seed=" + std::to_string(spec_.seeds[task.seed]);
  }

  Attempt do_task(const Task& task, PointNews* news) {
    const SweepPosition& position = spec_.positions[task.position];
    const TechniqueEntry& entry = spec_.techniques[task.technique];
    PointSettings settings = resolve_point(spec_, position, entry, spec_.seeds[task.seed]);
    settings.step_by_step = options_.step_by_step;
    const auto facts = workloads_.facts(task.position, settings);
    const ConfigNode effective = effective_settings(settings, *facts);

    CollectionRow row;
    row.model = settings.model.name;
    row.hardware = settings.hardware.name;
    row.backend = settings.backend;
    row.collected.label = entry.label;
    row.collected.technique = entry.technique;
    row.collected.seed = settings.seed;
    row.collected.key = point_key(effective, *facts);
    for (const auto& [path, value] : position.coordinates) {
      row.collected.coordinates.push_back(value);
    }
    news->key = row.collected.key;
    news->label = label_of(task);
    check_share(task.row, row.collected.key);
    {
      const std::lock_guard lock(mutex_);
      const std::size_t owner = collection_.owner(row.collected.key, task.row);
      if (owner != task.row) row.same_as = owner;
      if (collects()) collection_.forget_unless_collected(row.collected.key);
    }
    if (row.same_as) {
      news->outcome = PointOutcome::kCached;
    } else {
      const Attempt attempt = run_or_reuse(task, settings, effective, &row.collected, news);
      if (attempt != Attempt::kDone) return attempt;
    }
    row.present = true;
    const std::lock_guard lock(mutex_);
    ++(news->outcome == PointOutcome::kCached ? report_.cached : report_.computed);
    collection_.set(task.row, std::move(row));
    return Attempt::kDone;
  }

  // What a task computes must be what was asked of it.
  void check_share(std::size_t row, const std::string& key) const {
    if (options_.share == nullptr || options_.share->at(row) == key) return;
    throw SpecError(
        "what this point is made from (its data, or a model's folder) has changed since "
        "the job was made: its key was " +
        options_.share->at(row) + " and is " + key + "; run the spec again");
  }

  bool is_there(const std::string& path, CollectedRow* row, PointNews* news, std::string* damage) {
    std::optional<StoredPoint> stored = read_point(path, row->key, damage);
    if (!stored) return false;
    row->point = std::move(*stored);
    news->outcome = PointOutcome::kCached;
    news->status = row->point.status;
    news->message = row->point.reasons;
    return true;
  }

  Attempt run_or_reuse(const Task& task, const PointSettings& settings, const ConfigNode& effective,
                       CollectedRow* row, PointNews* news) {
    const std::string path = folder_.point_path(row->key);
    bool again = options_.force;
    if (!options_.force) {
      std::string damage;
      if (is_there(path, row, news, &damage)) {
        again = is_to_be_tried_again(*row) && !out_of_time();
        if (!again) return Attempt::kDone;
        news->warning = "was INVALID for the machine's sake (" + row->point.reasons +
                        "): the point is computed again";
        row->point = {};
        news->outcome = PointOutcome::kRun;
        news->message.clear();
      }
      if (!damage.empty()) {
        news->warning = path + " is damaged (" + damage + "): the point is computed again";
      }
    }
    if (!options_.compute) {
      const std::lock_guard lock(mutex_);
      report_.missing.push_back({task.row, row->key, news->label, task.is_real});
      return Attempt::kMissing;
    }
    if (out_of_time()) return Attempt::kNoTime;
    std::string holder;
    const LockAnswer answer = lock(row->key, &holder);
    if (answer != LockAnswer::kMine) {
      const std::lock_guard lock(mutex_);
      holder_ = holder;
      return answer == LockAnswer::kBusy ? Attempt::kBusy : Attempt::kUnclear;
    }
    const Held held{&locks_, row->key};
    // Its last owner may have saved it between the look above and the lock.
    std::string ignored;
    if (!again && is_there(path, row, news, &ignored)) return Attempt::kDone;
    if (task.is_real && options_.share == nullptr && !folder_.start_measuring()) {
      const std::lock_guard lock(mutex_);
      again_.erase(row->key);
      holder_ = "a run that measures " + folder_.path();
      return Attempt::kBusy;
    }
    const bool saved = compute(task, settings, effective, row, news);
    if (task.is_real) folder_.stop_measuring();
    return saved ? Attempt::kDone : Attempt::kBusy;
  }

  // A point that this machine spoilt is computed again, once by each run that looks at it.
  bool is_to_be_tried_again(const CollectedRow& row) {
    if (!options_.compute || !collects() || !folder_.is_writable()) return false;
    if (row.point.status == "VALID" || !is_of_machine(row.point.reasons)) return false;
    const std::lock_guard lock(mutex_);
    return again_.insert(row.key).second;
  }

  struct Held {
    PointLocks* locks;
    std::string key;
    ~Held() { locks->release(key); }
  };

  LockAnswer lock(const std::string& key, std::string* holder) {
    try {
      return locks_.lock(key, holder);
    } catch (const SpecError& error) {
      throw SaveError(error.what());
    }
  }

  // False when this process was silent for so long that another one took the point over.
  bool compute(const Task& task, const PointSettings& settings, const ConfigNode& effective,
               CollectedRow* row, PointNews* news) {
    const auto began = std::chrono::steady_clock::now();
    const auto built = workloads_.workload(task.position, task.seed, settings);
    const double cpu_began = thread_cpu_s();
    const PointResult result = run_point(settings, built->workload, options_.ranks);
    const double took_s = task.is_real ? result.wall_s : thread_cpu_s() - cpu_began;
    PointIdentity identity =
        point_identity(spec_.id, spec_.positions[task.position], settings, *built);
    identity.key = row->key;
    identity.effective = canonical_json(effective);
    RanOn ran_on{device_name(settings, options_.ranks), kernels_name(settings), {}};
    if (result.processor) ran_on.processor_loss = result.processor->loss();
    identity.context = context_json(result.record, result.wall_s, ran_on);
    const std::vector<std::byte> bytes = point_file(identity, built->workload, result.record,
                                                    result.summary, &row->point.content_digest);
    if (!locks_.is_still_mine(row->key)) return false;
    save(folder_.point_path(row->key), bytes);
    row->point.status = result.record.invalid_reasons.empty() ? "VALID" : "INVALID";
    for (const std::string& reason : result.record.invalid_reasons) {
      row->point.reasons += (row->point.reasons.empty() ? "" : "; ") + reason;
    }
    row->point.trace = identity.trace;
    row->point.summary = result.summary;
    news->status = row->point.status;
    news->message = row->point.reasons;
    news->wall_s = result.wall_s;
    const std::lock_guard lock(mutex_);
    if (took_s > report_.slowest_s) {
      report_.slowest_s = took_s;
      report_.slowest = news->label;
    }
    longest_point_ = std::max(longest_point_, std::chrono::steady_clock::now() - began);
    return true;
  }

  static void save(const std::string& path, const std::vector<std::byte>& bytes) {
    try {
      save_atomically(path, bytes);
    } catch (const SpecError& error) {
      throw SaveError(error.what());
    }
  }

  RunReport finish() {
    const std::vector<CollectedRow> there = collection_.present();
    for (const CollectedRow& row : there) {
      if (row.point.status != "VALID" && is_of_machine(row.point.reasons)) ++report_.of_machine;
      ++(row.point.status == "VALID" ? report_.valid : report_.invalid);
    }
    const bool complete = there.size() == tasks_.size();
    if (collects()) report_.collected = collection_.write(there);
    if (!there.empty()) report_.first_reasons = there.front().point.reasons;
    report_.points = tasks_.size();
    report_.interrupted = options_.stop != nullptr && options_.stop->load() != 0 && !complete;
    report_.bad_input = !report_.failures.empty() &&
                        std::all_of(report_.failures.begin(), report_.failures.end(),
                                    [](const FailedPoint& point) { return point.is_input; });
    report_.folder = folder_.path();
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - started_;
    report_.wall_s = wall.count();
    return report_;
  }

  const Spec& spec_;
  const RunOptions& options_;
  const OutputFolder& folder_;
  PointLocks locks_;
  std::vector<Task> tasks_;
  WorkloadCache workloads_;
  std::chrono::steady_clock::time_point started_;
  std::atomic<std::size_t> next_task_{0};
  std::atomic<bool> save_failed_{false};
  std::atomic<bool> is_out_of_time_{false};
  bool told_to_wait_ = false;

  std::mutex mutex_;  // guards what follows
  Collection collection_;
  std::set<std::string> again_;  // keys of points that were computed again for the machine's sake
  std::vector<Task> deferred_;   // others compute them: to be looked at again
  std::string holder_;           // one of those others
  std::optional<Progress> progress_;
  std::optional<std::string> save_error_;
  std::chrono::steady_clock::duration longest_point_{0};
  RunReport report_;
};

}  // namespace

RunReport run_spec_in(const OutputFolder& folder, const Spec& spec, const RunOptions& options) {
  SL_CHECK(options.jobs >= 1, "a run has at least one job");
  return SpecRun(folder, spec, options).run();
}

std::string form_of(const Spec& spec) {
  return sha256_hex(spec.yaml + '\0' + build_id()).substr(0, 16);
}

RunReport run_spec(const Spec& spec, const RunOptions& options) {
  const OutputFolder folder(options.out, spec.id, FolderUse::kRun, form_of(spec));
  return run_spec_in(folder, spec, options);
}

}  // namespace servelab
