#include "engine/run/point_locks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <vector>

#include "engine/core/check.h"
#include "engine/core/threads.h"
#include "engine/record/atomic_file.h"

namespace servelab {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLock = ".lock";
constexpr const char* kWorker = ".worker";
constexpr const char* kHeadLine = "servelab-lock 1";
constexpr std::chrono::hours kLongAgo{24};

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

class OpenFile {
 public:
  explicit OpenFile(const std::string& path)
      : file_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {}
  ~OpenFile() {
    if (file_ >= 0) ::close(file_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int get() const { return file_; }

 private:
  int file_;
};

// The beginning of a small file; empty when it cannot be read.
std::string text_in(int file) {
  char text[4096];
  const ssize_t size = ::pread(file, text, sizeof text, 0);
  return size > 0 ? std::string(text, static_cast<std::size_t>(size)) : std::string();
}

// Field 22 of /proc/<pid>/stat, when the process started in ticks since boot; nothing where /proc
// does not tell. Empty for one that has ended but was not waited for: all of it, since a killed
// process's threads may be in a last system call, a rename for one, after its first thread is gone.
std::optional<std::string> start_of(long pid) {
  const OpenFile file(fmt::format("/proc/{}/stat", pid));
  const std::string text = text_in(file.get());  // not a stream, which throws when it has just gone
  const std::size_t after_name = text.rfind(')');  // the name may hold anything
  if (after_name == std::string::npos) return std::nullopt;
  std::istringstream rest(text.substr(after_name + 1));
  const std::vector<std::string> fields{std::istream_iterator<std::string>(rest), {}};
  constexpr std::size_t kState = 0, kThreads = 17, kStart = 19;  // fields 3, 20 and 22
  if (fields.size() <= kStart) return std::nullopt;
  const bool has_ended = fields[kState] == "Z" || fields[kState] == "X";
  const bool is_alone = fields[kThreads] == "0" || fields[kThreads] == "1";
  return has_ended && is_alone ? "" : fields[kStart];
}

bool exists(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0;
}

bool is_same(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

enum class Presence { kThere, kGone, kElsewhere };

// Whether a process of this machine is there; kElsewhere when that cannot be known from here.
Presence presence_of(const LockOwner& owner, const LockOwner& self) {
  if (owner.boot.empty() || owner.boot != self.boot || owner.pid_namespace != self.pid_namespace ||
      owner.host != self.host) {
    return Presence::kElsewhere;
  }
  if (::kill(static_cast<pid_t>(owner.pid), 0) != 0 && errno == ESRCH) return Presence::kGone;
  const std::optional<std::string> start = start_of(owner.pid);
  if (!start) return Presence::kElsewhere;
  return *start == owner.start ? Presence::kThere : Presence::kGone;
}

std::optional<LockOwner> owner_in(int file) { return LockOwner::of_text(text_in(file)); }

// Whether a process was killed before it had written who it is; its file's name tells.
bool is_unborn(const fs::path& path, const LockOwner& self) {
  const std::string name = path.stem().string();  // <host>-<pid>-<random>
  const std::size_t end = name.rfind('-');
  const std::size_t begin = end == std::string::npos ? end : name.rfind('-', end - 1);
  if (begin == std::string::npos || name.substr(0, begin) != self.host) return false;
  const long pid = std::strtol(name.c_str() + begin + 1, nullptr, 10);
  return pid > 0 && ::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH;
}

// "0123abcd" of 0123abcd.h5.7.servelab-tmp and 0123abcd.1.lock.
std::string key_of(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.substr(0, name.find('.'));
}

}  // namespace

LockOwner LockOwner::this_process() {
  LockOwner owner;
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  owner.host = host;
  owner.boot = first_line("/proc/sys/kernel/random/boot_id");
  std::error_code ignored;
  owner.pid_namespace = fs::read_symlink("/proc/self/ns/pid", ignored).string();
  owner.pid = ::getpid();
  owner.start = start_of(owner.pid).value_or("");
  const char* array = std::getenv("SLURM_ARRAY_JOB_ID");
  const char* task = std::getenv("SLURM_ARRAY_TASK_ID");
  if (array != nullptr && task != nullptr) owner.job = std::string(array) + "_" + task;
  return owner;
}

std::string LockOwner::text() const {
  return fmt::format("{}\nhost {}\nboot {}\nspace {}\npid {}\nstart {}\njob {}\n", kHeadLine, host,
                     boot, pid_namespace, pid, start, job);
}

std::optional<LockOwner> LockOwner::of_text(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line) || line != kHeadLine) return std::nullopt;
  LockOwner owner;
  while (std::getline(lines, line)) {
    const std::size_t space = line.find(' ');
    if (space == std::string::npos) continue;
    const std::string key = line.substr(0, space);
    const std::string value = line.substr(space + 1);
    if (key == "host") owner.host = value;
    if (key == "boot") owner.boot = value;
    if (key == "space") owner.pid_namespace = value;
    if (key == "pid") owner.pid = std::strtol(value.c_str(), nullptr, 10);
    if (key == "start") owner.start = value;
    if (key == "job") owner.job = value;
  }
  return owner;
}

std::string LockOwner::name() const {
  return fmt::format("pid {} on {}{}", pid, host, job.empty() ? "" : " (Slurm job " + job + ")");
}

PointLocks::PointLocks(std::string folder, LockRules rules, LockOwner self)
    : folder_(std::move(folder)), rules_(rules), self_(std::move(self)) {}

PointLocks::~PointLocks() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  if (beats_.joinable()) beats_.join();
  for (const auto& [key, generation] : held_) remove(key, generation);
  if (own_file_ < 0) return;
  ::unlink(own_path_.c_str());
  ::close(own_file_);
}

// The process's own file, which locks are links to, and the thread that touches it.
void PointLocks::start() {
  std::random_device random;
  own_path_ = fmt::format("{}/{}-{}-{:08x}{}", folder_, self_.host, self_.pid, random(), kWorker);
  own_file_ = ::open(own_path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  const std::string text = self_.text();
  struct stat status {};
  if (own_file_ < 0 ||
      ::write(own_file_, text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      ::fsync(own_file_) != 0 || ::fstat(own_file_, &status) != 0) {
    const int error = errno;
    if (own_file_ >= 0) ::unlink(own_path_.c_str());
    throw SpecError(own_path_ + ": cannot be written: " + system_reason(error));
  }
  own_inode_ = status.st_ino;
  beats_ = std::move(start_threads(
                         1, [this](int) { beat(); }, [] {})
                         .front());
}

void PointLocks::beat() {
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, rules_.beat_every, [this] { return stopping_; })) {
    lock.unlock();
    ::futimens(own_file_, nullptr);  // of all locks at once: they are the same file
    lock.lock();
  }
}

std::string PointLocks::path(const std::string& key, int generation) const {
  return fmt::format("{}/{}.{}{}", folder_, key, generation, kLock);
}

int PointLocks::newest(const std::string& key) const {
  int generation = 0;
  while (exists(path(key, generation + 1))) ++generation;
  return generation;
}

bool PointLocks::is_own(const std::string& path) const {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && status.st_ino == own_inode_;
}

// Whether an owner on another machine gives signs of life.
PointLocks::Life PointLocks::watch(const std::string& key, const struct stat& status) {
  const auto now = std::chrono::steady_clock::now();
  Seen& seen = seen_[key];
  if (seen.file != status.st_ino) {
    seen = Seen{status.st_ino, status.st_mtim, now, false};
    return Life::kUnknown;
  }
  if (!is_same(seen.touched, status.st_mtim)) {
    seen = Seen{status.st_ino, status.st_mtim, now, true};
    return Life::kAlive;
  }
  if (now - seen.since >= rules_.stale_after) return Life::kDead;
  return seen.moved ? Life::kAlive : Life::kUnknown;
}

PointLocks::Life PointLocks::look_at(const std::string& key, int generation, std::string* holder) {
  const OpenFile file(path(key, generation));
  if (file.get() < 0) return errno == ENOENT || errno == ESTALE ? Life::kGone : Life::kUnknown;
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return Life::kUnknown;
  const std::optional<LockOwner> owner = owner_in(file.get());
  if (holder != nullptr) *holder = owner ? owner->name() : "an unknown process";
  if (owner) {
    switch (presence_of(*owner, self_)) {
      case Presence::kThere:
        return Life::kAlive;
      case Presence::kGone:
        return Life::kDead;
      case Presence::kElsewhere:
        break;
    }
  }
  return watch(key, status);
}

// Makes the lock's next generation; false when another process was first.
bool PointLocks::take(const std::string& key, int generation) {
  const std::string name = path(key, generation);
  const int error = ::link(own_path_.c_str(), name.c_str()) == 0 ? 0 : errno;
  // NFS: an error may hide that it was done, when the answer was lost and the question repeated.
  if (error == 0 || is_own(name)) {
    held_[key] = generation;
    return true;
  }
  if (error == EEXIST) return false;
  const bool has_no_links = error == EPERM || error == EOPNOTSUPP || error == ENOSYS;
  if (has_no_links && rules_.without_links) {
    held_[key] = 0;
    return true;
  }
  throw SpecError(name + ": points cannot be locked" +
                  (has_no_links ? ", since this file system has no hard links; choose another "
                                  "folder with --out"
                                : ": " + system_reason(error)));
}

LockAnswer PointLocks::lock(const std::string& key, std::string* holder) {
  const std::lock_guard lock(mutex_);
  if (own_file_ < 0) start();
  while (true) {
    const int generation = newest(key);
    if (generation > 0) {
      switch (look_at(key, generation, holder)) {
        case Life::kAlive:
          return LockAnswer::kBusy;
        case Life::kUnknown:
          return LockAnswer::kUnclear;
        case Life::kGone:
          continue;
        case Life::kDead:
          break;
      }
    }
    if (take(key, generation + 1)) break;
  }
  seen_.erase(key);
  if (held_[key] > 1) {  // its last owner may have left half a file
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder_, error)) {
      if (is_temporary(entry.path()) && key_of(entry.path()) == key) {
        fs::remove(entry.path(), error);
      }
    }
  }
  return LockAnswer::kMine;
}

bool PointLocks::is_still_mine(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto held = held_.find(key);
  if (held == held_.end()) return false;
  if (held->second == 0) return true;
  return is_own(path(key, held->second)) && !exists(path(key, held->second + 1));
}

void PointLocks::release(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto held = held_.find(key);
  if (held == held_.end()) return;
  remove(key, held->second);
  held_.erase(held);
}

// The newest first: what a kill leaves then has no gap, in which a new lock would hide.
void PointLocks::remove(const std::string& key, int generation) {
  if (generation == 0 || !is_own(path(key, generation)) || exists(path(key, generation + 1)))
    return;
  for (int g = generation; g >= 1; --g) ::unlink(path(key, g).c_str());
}

FolderState look_at_folder(const std::string& folder) {
  const LockOwner self = LockOwner::this_process();
  const auto is_over = [&](const fs::path& path) {
    const OpenFile file(path.string());
    if (file.get() < 0) return false;
    const std::optional<LockOwner> owner = owner_in(file.get());
    if (owner && presence_of(*owner, self) == Presence::kGone) return true;
    if (owner && presence_of(*owner, self) == Presence::kThere) return false;
    if (!owner && is_unborn(path, self)) return true;
    std::error_code error;
    const auto touched = fs::last_write_time(path, error);
    return !error && fs::file_time_type::clock::now() - touched > kLongAgo;
  };
  FolderState state;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const fs::path& path = entry.path();
    const std::string beside = folder + "/" + key_of(path);
    const std::string kind = path.extension().string();
    // A lock of a missing point is left to who computes it next: to remove it here could end the
    // lock that has just followed it.
    const bool is_left = is_temporary(path) ? !exists(beside + ".1" + kLock)
                         : kind == kLock    ? exists(beside + ".h5") && is_over(path)
                         : kind == kWorker  ? is_over(path)
                                            : false;
    if (is_left) state.leftovers.push_back(path.string());
    if (kind == kLock && !is_left) (is_over(path) ? state.dead_locks : state.locks) += 1;
  }
  return state;
}

void remove_leftovers(const std::string& folder) {
  std::error_code error;
  for (const std::string& path : look_at_folder(folder).leftovers) fs::remove(path, error);
}

}  // namespace servelab
