// Where results go: whether they fit, stay and can be written, and what killed runs left.
#include <filesystem>

#include "engine/cli/doctor/checks.h"
#include "engine/record/atomic_file.h"
#include "engine/run/point_locks.h"

namespace servelab::doctor {
namespace {

namespace fs = std::filesystem;

// A point of a million requests is at most so large on disk, and is written beside its old self.
constexpr Bytes kMillionRequests = 2 * 200 * kMiB;
// All figures that run on the twin and the CPU engine, with their points.
constexpr Bytes kAllFigures = 3500 * kMiB;

// The folder itself, or the nearest one above it that is there.
std::string nearest_there(const std::string& folder) {
  std::error_code error;
  fs::path path = fs::absolute(folder, error).lexically_normal();
  while (!fs::exists(path, error) && path != path.root_path()) path = path.parent_path();
  return path.string();
}

Finding check_writable(const Machine& machine, const std::string& folder) {
  if (machine.can_write(folder)) return ok("folder", folder);
  return problem("folder", folder + " cannot be written", "nothing can be saved there",
                 "mend its owner and mode, or servelab run --out");
}

Finding check_space(const DiskSpace& space) {
  const std::string found = gib(space.free) + " free of " + gib(space.total) + " where results go";
  constexpr const char* kMend = "make room, or servelab run --out with a folder elsewhere";
  if (space.free < kMillionRequests) {
    return problem("space", found,
                   "a point of a million requests needs " + gib(kMillionRequests) +
                       " while it is saved; a run that finds no room ends there and keeps what it "
                       "has",
                   kMend);
  }
  if (space.free < kAllFigures) {
    return note("space", found, "all figures together, which take " + gib(kAllFigures), kMend);
  }
  return ok("space", found);
}

// By statfs()'s magic numbers (linux/magic.h, and the file systems' own sources).
Finding check_file_system(const DiskSpace& space) {
  constexpr const char* kMend = "servelab run --out with a folder on a local disk";
  switch (space.file_system) {
    case 0x01021994:  // tmpfs
    case 0x858458f6:  // ramfs
      return note("file_system", "memory",
                  "results are gone when the machine restarts, and take its memory", kMend);
    case 0x794c7630:
      return note("file_system", "overlay: a container's own layer",
                  "results are gone with the container",
                  "mount a volume there, or servelab run --out with a folder on one");
    case 0x00006969:  // NFS
    case 0x0bd00bd0:  // Lustre
    case 0x47504653:  // GPFS
    case 0x19830326:  // BeeGFS
    case 0x00c36400:  // Ceph
    case 0xff534d42:  // CIFS
    case 0xfe534d42:  // SMB
    case 0x01021997:  // 9P
      return note("file_system", "of a network",
                  "where a point is computed twice over is decided by hard links: points of a "
                  "killed task on another machine are free after a minute only, and no network "
                  "file system was tried (engine/run/point_locks.h says what is asked of one)",
                  kMend);
    default:
      return ok("file_system", "of a disk");
  }
}

// Of all results/<spec id>/points together, wherever below.
FolderState look_at_results(const std::string& results) {
  FolderState state;
  std::error_code error;
  for (auto it = fs::recursive_directory_iterator(results, error);
       !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    std::error_code ignored;
    const std::string path = it->path().string();
    if (is_temporary(path)) state.leftovers.push_back(path);
    if (!it->is_directory(ignored) || it->path().filename() != "points") continue;
    it.disable_recursion_pending();
    const FolderState points = look_at_folder(path);
    state.dead_locks += points.dead_locks;
    state.leftovers.insert(state.leftovers.end(), points.leftovers.begin(), points.leftovers.end());
  }
  return state;
}

}  // namespace

Findings check_results(const Subject& subject) {
  const std::string folder = nearest_there(subject.results);
  Findings findings = {check_writable(subject.machine, folder)};
  if (const std::optional<DiskSpace> space = subject.machine.space(folder)) {
    findings.push_back(check_space(*space));
    findings.push_back(check_file_system(*space));
  }
  const FolderState state = look_at_results(subject.results);
  if (state.dead_locks > 0) {
    findings.push_back(note(
        "dead_locks", fmt::format("{} points that killed processes had begun", state.dead_locks),
        "they are missing; the next run takes them over",
        "the command that was killed, once more"));
  }
  if (!state.leftovers.empty()) {
    findings.push_back(note("leftovers",
                            fmt::format("{} files that killed processes left, or that are being "
                                        "written: {}",
                                        state.leftovers.size(), listed(state.leftovers, 2)),
                            "disk space only: no result is read from them",
                            "the next run of the same spec removes them"));
  }
  return findings;
}

}  // namespace servelab::doctor
