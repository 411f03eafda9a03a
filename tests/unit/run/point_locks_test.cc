// PointLocks: one owner at a time, through races, kills, silence and messages that come late.
#include "engine/run/point_locks.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "engine/core/check.h"
#include "tests/support/program.h"

namespace servelab {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using ::testing::HasSubstr;

// A process of another machine, as far as its locks tell.
LockOwner elsewhere(long pid = 7) {
  LockOwner owner = LockOwner::this_process();
  owner.host = "node" + std::to_string(pid);
  owner.boot = "another";
  owner.pid = pid;
  owner.job = "3_1";
  return owner;
}

constexpr LockRules kQuick{milliseconds(5), milliseconds(200)};
constexpr LockRules kSilent{milliseconds(600000), milliseconds(200)};

pid_t fork_and(const std::function<void()>& work) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  try {
    work();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "a child threw: %s\n", error.what());
    ::_exit(1);
  }
  ::_exit(0);
}

int reap(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status;
}

class ClaimsTest : public ::testing::Test {
 protected:
  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }
  // What a killed process leaves: a lock whose owner is gone.
  void leave_lock(const std::string& key) const {
    reap(fork_and([&] {
      PointLocks locks(folder_.path());
      locks.lock(key, nullptr);
      ::kill(::getpid(), SIGKILL);
    }));
  }

  test::TemporaryFolder folder_;
};

TEST_F(ClaimsTest, OwnerText) {
  const LockOwner owner = elsewhere();
  const auto again = LockOwner::of_text(owner.text());
  ASSERT_TRUE(again);
  EXPECT_EQ(again->text(), owner.text());
  EXPECT_EQ(again->name(), "pid 7 on node7 (Slurm job 3_1)");
  EXPECT_FALSE(LockOwner::of_text(""));
  EXPECT_FALSE(LockOwner::of_text("host node7\n"));
}

TEST_F(ClaimsTest, OneAtATimeAndNothingIsLeft) {
  {
    PointLocks first(folder_.path(), kQuick);
    PointLocks second(folder_.path(), kQuick);
    std::string holder;
    EXPECT_EQ(first.lock("a", nullptr), LockAnswer::kMine);
    EXPECT_TRUE(first.is_still_mine("a"));
    EXPECT_EQ(second.lock("a", &holder), LockAnswer::kBusy);
    EXPECT_THAT(holder, HasSubstr("pid " + std::to_string(::getpid()) + " on "));
    EXPECT_FALSE(second.is_still_mine("a"));
    EXPECT_EQ(second.lock("b", nullptr), LockAnswer::kMine);
    second.release("a");  // not its own
    EXPECT_EQ(second.lock("a", nullptr), LockAnswer::kBusy);
    first.release("a");
    EXPECT_EQ(second.lock("a", nullptr), LockAnswer::kMine);
    EXPECT_EQ(first.lock("a", nullptr), LockAnswer::kBusy);
  }
  EXPECT_EQ(files(), std::set<std::string>{});
}

TEST_F(ClaimsTest, KilledOwnersClaimIsFreeAtOnce) {
  PointLocks locks(folder_.path());
  leave_lock("a");
  EXPECT_TRUE(files().contains("a.1.lock"));
  folder_.file("a.h5.node7-12.servelab-tmp", "half");
  folder_.file("b.h5.node7-12.servelab-tmp", "of another point");
  EXPECT_EQ(locks.lock("a", nullptr), LockAnswer::kMine);
  EXPECT_TRUE(locks.is_still_mine("a"));
  EXPECT_FALSE(files().contains("a.h5.node7-12.servelab-tmp"));
  EXPECT_TRUE(files().contains("b.h5.node7-12.servelab-tmp"));
  locks.release("a");
  EXPECT_FALSE(files().contains("a.1.lock"));
  EXPECT_FALSE(files().contains("a.2.lock"));
}

TEST_F(ClaimsTest, OwnerThatWasKilledButNotWaitedForIsGone) {
  const pid_t child = fork_and([&] {
    PointLocks locks(folder_.path());
    locks.lock("a", nullptr);
    folder_.file("ready", "");
    ::pause();
  });
  ASSERT_TRUE(test::wait_for_files(folder_.path(), 1, "ready"));
  PointLocks locks(folder_.path());
  EXPECT_EQ(locks.lock("a", nullptr), LockAnswer::kBusy);
  ::kill(child, SIGKILL);
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);  // it stays a zombie
  EXPECT_EQ(locks.lock("a", nullptr), LockAnswer::kMine);
  reap(child);
}

TEST_F(ClaimsTest, ProcessIdThatWasGivenAgainIsNotTheOwner) {
  LockOwner old = LockOwner::this_process();
  old.start = "1";  // this process's id, but started earlier
  PointLocks dead(folder_.path(), kQuick, old);
  ASSERT_EQ(dead.lock("a", nullptr), LockAnswer::kMine);
  PointLocks locks(folder_.path(), kQuick);
  EXPECT_EQ(locks.lock("a", nullptr), LockAnswer::kMine);
}

TEST_F(ClaimsTest, AnotherMachinesOwnerLivesWhileItGivesSigns) {
  PointLocks there(folder_.path(), kQuick, elsewhere());
  ASSERT_EQ(there.lock("a", nullptr), LockAnswer::kMine);
  PointLocks here(folder_.path(), kQuick);
  std::string holder;
  EXPECT_EQ(here.lock("a", &holder), LockAnswer::kUnclear);
  EXPECT_EQ(holder, "pid 7 on node7 (Slurm job 3_1)");
  for (int i = 0; i < 25; ++i) {  // for longer than the limit
    std::this_thread::sleep_for(milliseconds(20));
    EXPECT_EQ(here.lock("a", nullptr), LockAnswer::kBusy);
  }
}

TEST_F(ClaimsTest, SilentOwnersClaimIsTakenOverOnceAndItNotices) {
  PointLocks silent(folder_.path(), kSilent, elsewhere());
  ASSERT_EQ(silent.lock("a", nullptr), LockAnswer::kMine);
  PointLocks here(folder_.path(), kQuick);
  PointLocks third(folder_.path(), kQuick, elsewhere(8));
  EXPECT_EQ(here.lock("a", nullptr), LockAnswer::kUnclear);
  EXPECT_EQ(third.lock("a", nullptr), LockAnswer::kUnclear);
  EXPECT_TRUE(silent.is_still_mine("a"));
  std::this_thread::sleep_for(milliseconds(220));
  EXPECT_EQ(here.lock("a", nullptr), LockAnswer::kMine);
  EXPECT_NE(third.lock("a", nullptr), LockAnswer::kMine);  // the new owner's time starts anew
  EXPECT_FALSE(silent.is_still_mine("a"));
  silent.release("a");  // must not open a gap below its successor
  EXPECT_TRUE(files().contains("a.1.lock"));
  EXPECT_TRUE(here.is_still_mine("a"));
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(third.lock("a", nullptr), LockAnswer::kBusy);
  here.release("a");
  EXPECT_FALSE(files().contains("a.1.lock"));
  EXPECT_FALSE(files().contains("a.2.lock"));
}

TEST_F(ClaimsTest, FileThatIsNoClaimOfOursCountsAsAnotherMachines) {
  folder_.file("a.1.lock", "");
  PointLocks here(folder_.path(), kQuick);
  EXPECT_EQ(here.lock("a", nullptr), LockAnswer::kUnclear);
  std::this_thread::sleep_for(milliseconds(220));
  EXPECT_EQ(here.lock("a", nullptr), LockAnswer::kMine);
}

TEST_F(ClaimsTest, LeftoversGoAndWhatIsInUseStays) {
  leave_lock("done");
  leave_lock("open");
  folder_.file("done.h5", "");
  folder_.file("lone.h5.node7-12.servelab-tmp", "half");
  PointLocks there(folder_.path(), kSilent, elsewhere());
  PointLocks here(folder_.path(), kQuick);
  ASSERT_EQ(there.lock("x", nullptr), LockAnswer::kMine);
  ASSERT_EQ(here.lock("y", nullptr), LockAnswer::kMine);
  folder_.file("y.h5", "");  // saved, and about to be released
  folder_.file("x.h5.node7-7.servelab-tmp", "being written");
  remove_leftovers(folder_.path());
  std::set<std::string> kept = files();
  std::erase_if(kept, [](const std::string& name) { return name.ends_with(".worker"); });
  EXPECT_EQ(kept, (std::set<std::string>{"done.h5", "open.1.lock", "x.1.lock", "y.h5", "y.1.lock",
                                         "x.h5.node7-7.servelab-tmp"}));
  EXPECT_EQ(files().size() - kept.size(), 2u) << "the files of the two that live";
}

TEST_F(ClaimsTest, FolderThatIsNotThereIsAnError) {
  PointLocks locks(folder_ / "nowhere");
  EXPECT_THROW(locks.lock("a", nullptr), SpecError);
}

// Computes every key that nobody has: exclusively, as a lock for tests alone checks, and once.
void compute_all(const std::string& folder, int keys, unsigned seed) {
  std::mt19937 random(seed);
  PointLocks locks(folder);
  for (int left = keys; left > 0;) {
    left = 0;
    for (int k = 0; k < keys; ++k) {
      const std::string key = "k" + std::to_string(k);
      const std::string point = folder + "/" + key + ".h5";
      if (fs::exists(point)) continue;
      ++left;
      if (locks.lock(key, nullptr) != LockAnswer::kMine) continue;
      if (!fs::exists(point)) {
        const int witness =
            ::open((folder + "/" + key + ".witness").c_str(), O_RDWR | O_CREAT, 0600);
        if (::flock(witness, LOCK_EX | LOCK_NB) != 0) test::write_file(folder + "/TWICE", key);
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
        const int made = ::open((point + ".new").c_str(), O_WRONLY | O_CREAT, 0600);
        if (!locks.is_still_mine(key)) test::write_file(folder + "/LOST", key);
        if (::link((point + ".new").c_str(), point.c_str()) != 0) {
          test::write_file(folder + "/AGAIN", key);
        }
        ::unlink((point + ".new").c_str());
        ::close(made);
        ::close(witness);
      }
      locks.release(key);
    }
  }
}

TEST_F(ClaimsTest, ManyProcessesAndKillsComputeEachKeyOnce) {
  constexpr int kKeys = 150;
  constexpr unsigned kProcesses = 6;
  std::mt19937 random(1);
  std::vector<pid_t> pids;
  for (unsigned i = 0; i < kProcesses; ++i) {
    pids.push_back(fork_and([&] { compute_all(folder_.path(), kKeys, i); }));
  }
  for (unsigned kill = 0; kill < 40; ++kill) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 8000));
    pid_t& victim = pids[random() % kProcesses];
    ::kill(victim, SIGKILL);
    reap(victim);
    victim = fork_and([&] { compute_all(folder_.path(), kKeys, kProcesses + kill); });
  }
  for (const pid_t pid : pids) EXPECT_EQ(reap(pid), 0);
  std::size_t points = 0;
  for (const std::string& name : files()) points += name.ends_with(".h5") ? 1 : 0;
  EXPECT_EQ(points, kKeys);
  for (const char* wrong : {"TWICE", "AGAIN", "LOST"}) {
    EXPECT_EQ(test::read_file(folder_ / wrong), "") << wrong;
  }
  remove_leftovers(folder_.path());
  for (const std::string& name : files()) {
    EXPECT_FALSE(name.ends_with(".lock") || name.ends_with(".worker")) << name;
  }
}

}  // namespace
}  // namespace servelab
