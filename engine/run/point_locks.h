// Who computes a point, when several processes, on one machine or many, work on one folder.
//
// A lock is a file <key>.<generation>.lock beside the points: a hard link to a file of its
// process, which says who that is and is touched every few seconds while the process lives. The
// newest generation counts. A lock is taken over by making the next generation, which only one
// process can, once its owner is gone: at once when that ran on this machine (process id, start
// time, boot), else when the file's time stood still for `stale_after` on the onlooker's own clock.
// Who has a lock looks for the point again before it computes, and for a newer generation before
// it saves.
//
// What this relies on: link() fails when the name exists and a rename is atomic, as POSIX, NFS,
// Lustre, GPFS, BeeGFS and CephFS promise; opening a file shows the times that its last writer set
// (NFS: close-to-open). No flock(), no clocks that agree, and no clean-up by who was killed. A
// process that is silent for longer than `stale_after` and then goes on may compute a point that
// another took over; it does not save it.
#ifndef SERVELAB_RUN_POINT_LOCKS_H_
#define SERVELAB_RUN_POINT_LOCKS_H_

#include <sys/stat.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace servelab {

// A process, told apart from every other one on any machine at any time.
struct LockOwner {
  std::string host;
  std::string boot;           // of the machine, since its start
  std::string pid_namespace;  // process ids mean something inside it
  long pid = 0;
  std::string start;  // of the process
  std::string job;    // Slurm's name of the task; empty outside

  static LockOwner this_process();
  static std::optional<LockOwner> of_text(const std::string& text);
  std::string text() const;  // for the file
  std::string name() const;  // for people: "pid 12 on node7 (Slurm job 3_0)"
};

struct LockRules {
  std::chrono::milliseconds beat_every{5000};
  std::chrono::milliseconds stale_after{60000};
  bool without_links = false;  // go on unlocked where the file system has no hard links
};

enum class LockAnswer {
  kMine,
  kBusy,     // its owner lives
  kUnclear,  // its owner is on another machine and has given no sign yet: ask again
};

// Thread-safe. Throws SpecError when files cannot be made.
class PointLocks {
 public:
  explicit PointLocks(std::string folder, LockRules rules = {},
                      LockOwner self = LockOwner::this_process());
  ~PointLocks();  // gives back what is still locked
  PointLocks(const PointLocks&) = delete;
  PointLocks& operator=(const PointLocks&) = delete;

  // `holder` receives who else has the point, for people.
  LockAnswer lock(const std::string& key, std::string* holder);
  // Whether nobody took the point over; asked before it is saved.
  bool is_still_mine(const std::string& key);
  void release(const std::string& key);  // after saving, or giving up

 private:
  enum class Life { kAlive, kDead, kUnknown, kGone };
  struct Seen {  // the last look at another machine's lock
    ino_t file = 0;
    timespec touched{};
    std::chrono::steady_clock::time_point since;
    bool moved = false;
  };

  std::string path(const std::string& key, int generation) const;
  void start();
  void beat();
  int newest(const std::string& key) const;
  Life look_at(const std::string& key, int generation, std::string* holder);
  Life watch(const std::string& key, const struct stat& status);
  bool is_own(const std::string& path) const;
  bool take(const std::string& key, int generation);
  void remove(const std::string& key, int generation);

  std::string folder_;
  LockRules rules_;
  LockOwner self_;
  std::string own_path_;
  int own_file_ = -1;
  ino_t own_inode_ = 0;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::map<std::string, int> held_;  // generation by key; 0 without a file
  std::map<std::string, Seen> seen_;
  std::thread beats_;
};

// What processes left in a folder of points, or have there.
struct FolderState {
  // Halves of files that nobody locks, locks of points that are there, and files of processes
  // that are gone: in nobody's way, and safe to remove.
  std::vector<std::string> leftovers;
  int locks = 0;       // by processes that live, as far as can be told from here
  int dead_locks = 0;  // of missing points; the next run takes them over
};
FolderState look_at_folder(const std::string& folder);

void remove_leftovers(const std::string& folder);  // FolderState's

}  // namespace servelab

#endif  // SERVELAB_RUN_POINT_LOCKS_H_
