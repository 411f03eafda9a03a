#include <filesystem>
#include <sstream>

#include "engine/cli/doctor/checks.h"
#include "engine/cli/doctor/format.h"

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

struct Mount {
  std::string point;
  std::string type;
};

// Blanks in paths are written as \040 there.
std::string unescaped(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      plain += static_cast<char>(std::stoi(text.substr(i + 1, 3), nullptr, 8));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

// The file system of a folder: the last mount on the longest path that leads to it.
Mount mount_of(const Machine& machine, const std::string& folder) {
  std::error_code error;
  const std::string path = fs::weakly_canonical(folder, error).string();
  Mount best;
  std::istringstream lines(machine.text("/proc/self/mountinfo"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string skipped, point, word;
    fields >> skipped >> skipped >> skipped >> skipped >> point;
    while (fields >> word && word != "-") {
    }
    std::string type;
    fields >> type;
    point = unescaped(point);
    const bool leads = point == "/" || path == point || path.rfind(point + "/", 0) == 0;
    if (leads && !type.empty() && point.size() >= best.point.size()) best = {point, type};
  }
  return best;
}

bool is_network(const std::string& type) {
  for (const char* known : {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "cifs",
                            "smb3", "afs", "9p", "fuse.sshfs", "fuse.glusterfs", "orangefs"}) {
    if (type == known) return true;
  }
  return false;
}

Finding check_file_system(const Machine& machine, const std::string& folder) {
  const Mount mount = mount_of(machine, folder);
  if (mount.type.empty()) return ok("file_system", "not shown here");
  if (is_network(mount.type)) {
    return note("file_system", mount.type + ": of a network",
                "where a point is computed twice over is decided by hard links: points of a killed "
                "task on another machine are free after a minute only, and no network file system "
                "was tried (engine/run/point_locks.h says what is asked of one)",
                "servelab run --out with a folder on a local disk, where one machine is enough");
  }
  if (mount.type == "tmpfs" || mount.type == "ramfs") {
    return note("file_system", mount.type + ": memory",
                "results are gone when the machine restarts, and take its memory",
                "servelab run --out with a folder on a disk");
  }
  if (mount.type == "overlay") {
    return note("file_system", "overlay: a container's own layer",
                "results are gone with the container",
                "mount a volume there, or servelab run --out with a folder on one");
  }
  return ok("file_system", mount.type);
}

Finding check_space(const Machine& machine, const std::string& folder) {
  const std::optional<DiskSpace> space = machine.space(folder);
  if (!space) return ok("space", "not shown here");
  const std::string found =
      gib(space->free) + " free of " + gib(space->total) + " where results go";
  constexpr const char* kMend = "make room, or servelab run --out with a folder elsewhere";
  if (space->free < kMillionRequests) {
    return problem("space", found,
                   "a point of a million requests needs " + gib(kMillionRequests) +
                       " while it is saved; a run that finds no room ends there and keeps what it "
                       "has",
                   kMend);
  }
  if (space->free < kAllFigures) {
    return note("space", found, "all figures together, which take " + gib(kAllFigures), kMend);
  }
  return ok("space", found);
}

}  // namespace

Findings check_disk(const Subject& subject) {
  const std::string folder = nearest_there(subject.results);
  return {check_space(subject.machine, folder), check_file_system(subject.machine, folder)};
}

}  // namespace servelab::doctor
