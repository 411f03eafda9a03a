#include "engine/run/output_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>

#include "engine/core/check.h"
#include "engine/record/atomic_file.h"
#include "engine/run/point_locks.h"

namespace servelab {
namespace {

std::string text_in(int file) {
  char text[256] = {};
  return ::pread(file, text, sizeof text - 1, 0) > 0 ? text : "";
}

std::string form_in(int file) {
  const std::string text = text_in(file);
  const std::size_t first = text.find('\n');
  if (first == std::string::npos) return "";
  return text.substr(first + 1, text.find('\n', first + 1) - first - 1);
}

}  // namespace

OutputFolder::OutputFolder(const std::string& out, const std::string& spec_id, FolderUse use,
                           const std::string& form)
    : path_((std::filesystem::path(out) / spec_id).lexically_normal().string()) {
  std::error_code error;
  std::filesystem::create_directories(path_ + "/points", error);
  if (error) {
    throw SpecError(path_ + ": the folder cannot be made: " + system_reason(error.value()));
  }
  if (use != FolderUse::kShared) lock(use, form);
}

OutputFolder::~OutputFolder() {
  if (lock_file_ >= 0) ::close(lock_file_);  // releases the lock
  stop_measuring();
}

void OutputFolder::remove_collected() const {
  std::error_code error;
  std::filesystem::remove(collected_path(), error);
  if (error) {
    throw SpecError(collected_path() +
                    ": is out of date, but cannot be removed: " + system_reason(error.value()));
  }
}

// The lock goes with its process, however that ends; the file stays. Its text says who took it last
// and in which form of the spec.
void OutputFolder::lock(FolderUse use, const std::string& form) {
  const std::string path = path_ + "/.lock";
  lock_file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_file_ < 0 && (errno == EROFS || errno == EACCES || errno == EPERM) &&
      ::access(path_.c_str(), W_OK) != 0) {
    is_writable_ = false;
    return;
  }
  if (lock_file_ < 0) {
    throw SpecError(path + ": cannot be written: " + system_reason(errno));
  }
  const bool is_first = ::flock(lock_file_, LOCK_EX | LOCK_NB) == 0;
  if (!is_first && errno != EWOULDBLOCK) {
    throw SpecError(path + ": cannot be locked: " + system_reason(errno));
  }
  if (is_first) {
    remove_stale_temporaries(path_);
    remove_leftovers(points_path());
    const std::string text = std::to_string(::getpid()) + "\n" + form + "\n";
    // A disk too full for a few bytes is reported by the first point.
    if (::ftruncate(lock_file_, 0) != 0 ||
        ::pwrite(lock_file_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
      return;
    }
    if (use == FolderUse::kAlone) return;
    // What is between this lock and the next one is another run's lock, which looks at the text.
    if (::flock(lock_file_, LOCK_SH | LOCK_NB) != 0) refuse();
    return;
  }
  // Whoever has the folder alone for long is no run; a first run has it so for a moment.
  constexpr int kTries = 50;
  for (int i = 0; ::flock(lock_file_, LOCK_SH | LOCK_NB) != 0; ++i) {
    if (i == kTries || use == FolderUse::kAlone) refuse();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (use == FolderUse::kAlone || form_in(lock_file_) != form) refuse();
}

void OutputFolder::refuse() const {
  const std::string holder = text_in(lock_file_);
  ::close(lock_file_);
  throw SpecError(path_ + " is in use by another servelab run (pid " +
                  (holder.empty() ? "unknown" : holder.substr(0, holder.find('\n'))) +
                  ") of another form of the spec, or of another build; wait for it or choose "
                  "another folder with --out");
}

bool OutputFolder::start_measuring() const {
  if (measuring_ >= 0) return true;
  const std::string path = path_ + "/.measuring";
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) return true;  // the point's own file will say what is wrong
  if (::flock(file, LOCK_EX | LOCK_NB) == 0) {
    measuring_ = file;
    return true;
  }
  ::close(file);
  return false;
}

void OutputFolder::stop_measuring() const {
  if (measuring_ >= 0) ::close(measuring_);
  measuring_ = -1;
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
