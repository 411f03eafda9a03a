#include "engine/run/output_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "engine/core/check.h"
#include "engine/record/atomic_file.h"
#include "engine/run/point_locks.h"

namespace servelab {

OutputFolder::OutputFolder(const std::string& out, const std::string& spec_id, FolderUse use)
    : path_((std::filesystem::path(out) / spec_id).lexically_normal().string()) {
  std::error_code error;
  std::filesystem::create_directories(path_ + "/points", error);
  if (error) {
    throw SpecError(path_ + ": the folder cannot be made: " + system_reason(error.value()));
  }
  if (use == FolderUse::kShared) return;
  lock();
  remove_stale_temporaries(path_);
  remove_leftovers(points_path());
}

OutputFolder::~OutputFolder() {
  if (lock_file_ >= 0) ::close(lock_file_);  // releases the lock
}

void OutputFolder::remove_collected() const {
  std::error_code error;
  std::filesystem::remove(collected_path(), error);
  if (error) {
    throw SpecError(collected_path() +
                    ": is out of date, but cannot be removed: " + system_reason(error.value()));
  }
}

// The lock goes with its process, however that ends; the file stays.
void OutputFolder::lock() {
  const std::string path = path_ + "/.lock";
  lock_file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_file_ < 0) {
    throw SpecError(path + ": cannot be written: " + system_reason(errno));
  }
  if (::flock(lock_file_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    char holder[32] = {};
    if (error == EWOULDBLOCK && ::pread(lock_file_, holder, sizeof holder - 1, 0) >= 0) {
      ::close(lock_file_);
      throw SpecError(path_ + " is in use by another servelab run (pid " +
                      std::string(holder[0] != '\0' ? holder : "unknown") +
                      "); wait for it or choose another folder with --out");
    }
    ::close(lock_file_);
    throw SpecError(path + ": cannot be locked: " + system_reason(error));
  }
  const std::string pid = std::to_string(::getpid());
  // Only informs: a disk too full for a few bytes is reported by the first point.
  if (::ftruncate(lock_file_, 0) != 0 ||
      ::pwrite(lock_file_, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return;
  }
}

std::string path_for_commands(const std::string& path) {
  std::error_code error;
  const auto file = std::filesystem::weakly_canonical(path, error);
  const auto relative = file.lexically_relative(std::filesystem::current_path(error));
  if (error) return path;
  const bool is_inside = !relative.empty() && *relative.begin() != "..";
  return (is_inside ? relative : file).generic_string();
}

}  // namespace servelab
