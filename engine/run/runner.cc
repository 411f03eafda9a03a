#include "engine/run/runner.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "engine/record/atomic_file.h"
#include "engine/record/collected_file.h"
#include "engine/record/context.h"
#include "engine/run/output_folder.h"
#include "engine/run/point.h"
#include "engine/run/progress.h"
#include "engine/run/real_run.h"
#include "engine/run/spec_check.h"

namespace servelab {
namespace {

// Results could not be written: no other point would fare better.
class SaveError : public SpecError {
 public:
  using SpecError::SpecError;
};

// The workload of one position and seed, built by the first point that needs it and dropped after
// the last.
struct SharedWorkload {
  std::mutex mutex;
  std::shared_ptr<const BuiltWorkload> built;
  std::atomic<std::size_t> users{0};
};

// What a workload's settings led to at one position: its effective settings and sources, without
// the requests. They do not depend on the seed, so cached points need no workload of their own.
struct PositionFacts {
  std::mutex mutex;
  std::shared_ptr<const BuiltWorkload> facts;
};

struct Task {
  std::size_t position = 0;
  std::size_t technique = 0;
  std::size_t seed = 0;
  std::size_t row = 0;  // in spec order: position, technique, seed
};

class SpecRun {
 public:
  SpecRun(const Spec& spec, const RunOptions& options)
      : spec_(spec),
        options_(options),
        folder_(options.out, spec.id),
        workloads_(spec.positions.size() * spec.seeds.size()),
        facts_(spec.positions.size()),
        started_(std::chrono::steady_clock::now()) {
    // Points that share a workload follow each other; those in wall-clock time come last.
    const std::size_t seeds = spec.seeds.size();
    for (std::size_t p = 0; p < spec.positions.size(); ++p) {
      const std::vector<std::size_t>& techniques = spec.positions[p].techniques;
      const std::size_t first_row = tasks_.size();
      for (std::size_t s = 0; s < seeds; ++s) {
        for (std::size_t i = 0; i < techniques.size(); ++i) {
          tasks_.push_back(Task{p, techniques[i], s, first_row + i * seeds + s});
        }
        workloads_[p * seeds + s].users = techniques.size();
      }
    }
    const auto real = std::stable_partition(tasks_.begin(), tasks_.end(), [&](const Task& task) {
      const ConfigNode* backend = spec.positions[task.position].settings.find("backend");
      return backend == nullptr || !is_real(backend->scalar);
    });
    virtual_tasks_ = static_cast<std::size_t>(real - tasks_.begin());
    rows_.resize(tasks_.size());
    forget_other_spec();
    progress_.emplace(spec.id, tasks_.size(), options.quiet);
  }

  RunReport run() {
    std::vector<std::thread> threads;
    const auto jobs =
        std::min<std::size_t>(static_cast<std::size_t>(options_.jobs), virtual_tasks_);
    for (std::size_t i = 1; i < jobs; ++i) {
      threads.emplace_back([this] { work(virtual_tasks_); });
    }
    work(virtual_tasks_);
    for (std::thread& thread : threads) thread.join();
    // A real engine has the machine to itself.
    next_task_ = virtual_tasks_;
    work(tasks_.size());
    progress_->finish();
    if (save_error_) throw SaveError(*save_error_);
    return finish();
  }

 private:
  // collected.h5 goes as soon as it is known to tell of other points than this spec's, so that a
  // run that fails or is killed leaves nothing to be drawn by mistake.
  void forget_other_spec() {
    const std::optional<CollectedFacts> old = read_collected(folder_.collected_path());
    if (!old) return;
    if (old->spec != spec_.yaml || old->keys.size() != tasks_.size()) {
      folder_.remove_collected();
    } else {
      old_keys_ = old->keys;
    }
  }
  void forget_unless_collected(const std::string& key) {
    if (old_keys_.empty() || std::binary_search(old_keys_.begin(), old_keys_.end(), key)) return;
    folder_.remove_collected();
    old_keys_.clear();
  }

  struct Row {
    CollectedRow collected;
    bool present = false;
    std::optional<std::size_t> same_as;  // another row has this key
    std::string model, hardware, backend;
  };

  bool stopping() const {
    return save_failed_ || (options_.stop != nullptr && options_.stop->load() != 0);
  }

  // Whether a point as long as the longest so far would end after the deadline.
  bool out_of_time() {
    if (!options_.deadline) return false;
    const std::lock_guard lock(mutex_);
    if (std::chrono::steady_clock::now() + longest_point_ <= *options_.deadline) return false;
    report_.out_of_time = true;
    return true;
  }

  void work(std::size_t end) {
    while (!stopping()) {
      const std::size_t next = next_task_++;
      if (next >= end) return;
      PointNews news;
      const Task& task = tasks_[next];
      bool is_done = true;
      try {
        is_done = do_task(task, &news);
      } catch (const SaveError& error) {
        const std::lock_guard lock(mutex_);
        save_failed_ = true;
        if (!save_error_) save_error_ = error.what();
        return;
      } catch (const SpecError& error) {
        fail(task, &news, error.what(), true);
      } catch (const std::bad_alloc&) {
        fail(task, &news, too_little_memory(spec_) + ", or run fewer points at once with -j 1",
             false);
      } catch (const std::exception& error) {
        fail(task, &news, error.what(), false);
      }
      release_workload(task);
      if (!is_done) continue;
      const std::lock_guard lock(mutex_);
      if (!save_failed_) progress_->point(news);
    }
  }

  void fail(const Task& task, PointNews* news, const std::string& message, bool is_input) {
    news->outcome = PointOutcome::kFailed;
    news->label = label_of(task);
    news->message = message;
    const std::lock_guard lock(mutex_);
    ++report_.failed;
    if (!is_input) only_input_errors_ = false;
  }

  std::string label_of(const Task& task) const {
    std::string text = spec_.techniques[task.technique].label;
    const std::string position = spec_.positions[task.position].text();
    if (!position.empty()) text += " " + position;
    return text + " seed=" + std::to_string(spec_.seeds[task.seed]);
  }

  // False: there was no time left for it.
  bool do_task(const Task& task, PointNews* news) {
    const SweepPosition& position = spec_.positions[task.position];
    const TechniqueEntry& entry = spec_.techniques[task.technique];
    const PointSettings settings = resolve_point(spec_, position, entry, spec_.seeds[task.seed]);
    const std::shared_ptr<const BuiltWorkload> facts = facts_of(task, settings);
    const ConfigNode effective = effective_settings(settings, *facts);

    Row row;
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
    {
      const std::lock_guard lock(mutex_);
      const auto [owner, is_first] = owners_.emplace(row.collected.key, task.row);
      if (!is_first) row.same_as = owner->second;
      forget_unless_collected(row.collected.key);
    }
    if (row.same_as) {
      news->outcome = PointOutcome::kCached;
    } else if (!run_or_reuse(task, settings, effective, &row.collected, news)) {
      return false;
    }
    row.present = true;
    const std::lock_guard lock(mutex_);
    ++(news->outcome == PointOutcome::kCached ? report_.cached : report_.computed);
    rows_[task.row] = std::move(row);
    return true;
  }

  bool run_or_reuse(const Task& task, const PointSettings& settings, const ConfigNode& effective,
                    CollectedRow* row, PointNews* news) {
    const std::string path = folder_.point_path(row->key);
    if (!options_.force) {
      std::string damage;
      if (std::optional<StoredPoint> stored = read_point(path, row->key, &damage)) {
        row->point = std::move(*stored);
        news->outcome = PointOutcome::kCached;
        news->status = row->point.status;
        news->message = row->point.reasons;
        return true;
      }
      if (!damage.empty()) {
        news->warning = path + " is damaged (" + damage + "): the point is computed again";
      }
    }
    if (out_of_time()) return false;
    const auto began = std::chrono::steady_clock::now();
    const std::shared_ptr<const BuiltWorkload> built = workload_of(task, settings);
    const BuiltWorkload& workload = *built;
    const PointResult result = run_point(settings, workload.workload);
    PointIdentity identity;
    identity.key = row->key;
    identity.spec_id = spec_.id;
    identity.technique = settings.technique_id;
    identity.seed = settings.seed;
    identity.backend = settings.backend;
    identity.hardware = settings.hardware.name;
    identity.model = settings.model.name;
    identity.trace = trace_names(workload);
    identity.requested = canonical_json(settings.requested);
    identity.effective = canonical_json(effective);
    identity.sweep = coordinates_json(spec_.positions[task.position]);
    identity.sources = sources_json(workload);
    identity.context =
        context_json(result.wall_s, to_seconds(result.record.cluster.decision_wall_time),
                     device_name(settings.backend));
    for (const std::string& note : workload.notes) {
      identity.notes += (identity.notes.empty() ? "" : "; ") + note;
    }
    save(path, point_file(identity, workload.workload, result.record, result.summary,
                          &row->point.content_digest));
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
    longest_point_ = std::max(longest_point_, std::chrono::steady_clock::now() - began);
    return true;
  }

  static std::string coordinates_json(const SweepPosition& position) {
    ConfigNode node = ConfigNode::map();
    for (const auto& [path, value] : position.coordinates) node.set(path, value);
    return canonical_json(node);
  }

  static void save(const std::string& path, const std::vector<std::byte>& bytes) {
    try {
      save_atomically(path, bytes);
    } catch (const SpecError& error) {
      throw SaveError(error.what());
    }
  }

  SharedWorkload& shared_workload(const Task& task) {
    return workloads_[task.position * spec_.seeds.size() + task.seed];
  }

  std::shared_ptr<const BuiltWorkload> workload_of(const Task& task,
                                                   const PointSettings& settings) {
    SharedWorkload& shared = shared_workload(task);
    const std::lock_guard lock(shared.mutex);
    if (shared.built == nullptr) {
      shared.built =
          std::make_shared<const BuiltWorkload>(build_point_workload(settings, options_.data_dir));
    }
    return shared.built;
  }

  std::shared_ptr<const BuiltWorkload> facts_of(const Task& task, const PointSettings& settings) {
    PositionFacts& position = facts_[task.position];
    const std::lock_guard lock(position.mutex);
    if (position.facts == nullptr) {
      const std::shared_ptr<const BuiltWorkload> built = workload_of(task, settings);
      position.facts = std::make_shared<const BuiltWorkload>(
          BuiltWorkload{Workload{}, built->effective, built->sources});
    }
    return position.facts;
  }

  void release_workload(const Task& task) {
    SharedWorkload& shared = shared_workload(task);
    if (shared.users.fetch_sub(1) != 1) return;
    const std::lock_guard lock(shared.mutex);
    shared.built.reset();
  }

  RunReport finish() {
    std::vector<CollectedRow> collected;
    bool complete = true;
    for (Row& row : rows_) {
      if (row.same_as) row.collected.point = rows_[*row.same_as].collected.point;
      if (!row.present || (row.same_as && !rows_[*row.same_as].present)) {
        complete = false;
        continue;
      }
      ++(row.collected.point.status == "VALID" ? report_.valid : report_.invalid);
      collected.push_back(row.collected);
    }
    if (complete) {
      save(folder_.collected_path(), collected_file(header(), collected));
    } else {
      folder_.remove_collected();
    }
    if (!collected.empty()) report_.first_reasons = collected.front().point.reasons;
    report_.points = tasks_.size();
    report_.interrupted = options_.stop != nullptr && options_.stop->load() != 0 && !complete;
    report_.bad_input = report_.failed > 0 && only_input_errors_;
    report_.folder = folder_.path();
    report_.collected = complete;
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - started_;
    report_.wall_s = wall.count();
    return report_;
  }

  CollectedHeader header() const {
    CollectedHeader header;
    header.spec_id = spec_.id;
    header.title = spec_.title;
    header.figure = spec_.figure;
    header.spec = spec_.yaml;
    header.spec_path = path_for_commands(spec_.path);
    header.swept = spec_.swept;
    header.backend = joined([](const Row& row) { return row.backend; });
    header.hardware = joined([](const Row& row) { return row.hardware; });
    header.model = joined([](const Row& row) { return row.model; });
    header.trace = joined([](const Row& row) { return row.collected.point.trace; });
    return header;
  }

  // The rows' distinct values, in spec order.
  template <class Get>
  std::string joined(Get get) const {
    std::set<std::string> seen;
    std::string text;
    for (const Row& row : rows_) {
      const std::string value = get(row);
      if (value.empty() || !seen.insert(value).second) continue;
      text += (text.empty() ? "" : ", ") + value;
    }
    return text;
  }

  const Spec& spec_;
  const RunOptions& options_;
  OutputFolder folder_;
  std::vector<Task> tasks_;
  std::size_t virtual_tasks_ = 0;          // tasks_ before this one run in virtual time
  std::vector<SharedWorkload> workloads_;  // by position and seed
  std::vector<PositionFacts> facts_;       // by position
  std::chrono::steady_clock::time_point started_;
  std::atomic<std::size_t> next_task_{0};
  std::atomic<bool> save_failed_{false};

  std::mutex mutex_;  // guards what follows
  std::vector<Row> rows_;
  std::map<std::string, std::size_t> owners_;  // row that computes a key
  std::vector<std::string> old_keys_;          // of a collected.h5 that may still be this spec's
  std::optional<Progress> progress_;
  std::optional<std::string> save_error_;
  bool only_input_errors_ = true;
  std::chrono::steady_clock::duration longest_point_{0};
  RunReport report_;
};

}  // namespace

RunReport run_spec(const Spec& spec, const RunOptions& options) {
  SL_CHECK(options.jobs >= 1, "a run has at least one job");
  return SpecRun(spec, options).run();
}

}  // namespace servelab
