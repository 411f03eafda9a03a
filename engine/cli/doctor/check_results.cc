#include <filesystem>

#include "engine/cli/doctor/checks.h"
#include "engine/cli/doctor/format.h"
#include "engine/record/atomic_file.h"
#include "engine/run/point_locks.h"

namespace servelab::doctor {
namespace {

namespace fs = std::filesystem;

struct ResultsState {
  FolderState points;               // of all specs together
  std::vector<std::string> closed;  // folders that cannot be written
  int specs = 0;
};

// results/<spec id>/points, wherever below; nothing below that.
ResultsState look_at_results(const Machine& machine, const std::string& results) {
  ResultsState state;
  std::error_code error;
  for (auto it = fs::recursive_directory_iterator(results, error);
       !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    std::error_code ignored;
    const fs::path& path = it->path();
    if (is_temporary(path)) state.points.leftovers.push_back(path.string());
    if (!it->is_directory(ignored)) continue;
    if (!machine.can_write(path.string())) state.closed.push_back(path.string());
    if (path.filename() != "points") continue;
    it.disable_recursion_pending();
    ++state.specs;
    const FolderState points = look_at_folder(path.string());
    state.points.locks += points.locks;
    state.points.dead_locks += points.dead_locks;
    state.points.leftovers.insert(state.points.leftovers.end(), points.leftovers.begin(),
                                  points.leftovers.end());
  }
  return state;
}

Finding check_writable(const Subject& subject, const ResultsState& state) {
  std::error_code error;
  std::string folder = subject.results;
  if (!fs::exists(folder, error)) folder = fs::absolute(folder, error).parent_path().string();
  const bool is_closed = !subject.machine.can_write(folder);
  if (!is_closed && state.closed.empty()) {
    return ok("folder", fmt::format("{}, with points of {} specs", subject.results, state.specs));
  }
  return problem("folder", (is_closed ? folder : listed(state.closed, 3)) + " cannot be written",
                 "nothing can be saved there", "mend its owner and mode, or servelab run --out");
}

}  // namespace

Findings check_results(const Subject& subject) {
  const ResultsState state = look_at_results(subject.machine, subject.results);
  Findings findings = {check_writable(subject, state)};
  if (state.points.locks > 0) {
    findings.push_back(ok("locks", fmt::format("{} points are being computed, as far as can be "
                                               "told from here",
                                               state.points.locks)));
  }
  if (state.points.dead_locks > 0) {
    findings.push_back(
        note("dead_locks",
             fmt::format("{} points that killed processes had begun", state.points.dead_locks),
             "they are missing; the next run takes them over",
             "the command that was killed, once more"));
  }
  if (!state.points.leftovers.empty()) {
    findings.push_back(
        note("leftovers",
             fmt::format("{} files that killed processes left, or that are being "
                         "written: {}",
                         state.points.leftovers.size(), listed(state.points.leftovers, 2)),
             "disk space only: no result is read from them",
             "the next run of the same spec removes them"));
  }
  return findings;
}

}  // namespace servelab::doctor
