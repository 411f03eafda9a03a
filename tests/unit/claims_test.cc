// Claims: one owner at a time, through races, kills, silence and messages that come late.
#include "engine/run/claims.h"

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

// A process of another machine, as far as its claims tell.
ClaimOwner elsewhere(long pid = 7) {
  ClaimOwner owner = ClaimOwner::this_process();
  owner.host = "node" + std::to_string(pid);
  owner.boot = "another";
  owner.pid = pid;
  owner.job = "3_1";
  return owner;
}

constexpr ClaimRules kQuick{milliseconds(5), milliseconds(200)};
constexpr ClaimRules kSilent{milliseconds(600000), milliseconds(200)};

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
  // What a killed process leaves: a claim whose owner is gone.
  void leave_claim(const std::string& key) const {
    reap(fork_and([&] {
      Claims claims(folder_.path());
      claims.claim(key, nullptr);
      ::kill(::getpid(), SIGKILL);
    }));
  }

  test::TemporaryFolder folder_;
};

TEST_F(ClaimsTest, OwnerText) {
  const ClaimOwner owner = elsewhere();
  const auto again = ClaimOwner::of_text(owner.text());
  ASSERT_TRUE(again);
  EXPECT_EQ(again->text(), owner.text());
  EXPECT_EQ(again->name(), "pid 7 on node7 (Slurm job 3_1)");
  EXPECT_FALSE(ClaimOwner::of_text(""));
  EXPECT_FALSE(ClaimOwner::of_text("host node7\n"));
}

TEST_F(ClaimsTest, OneAtATimeAndNothingIsLeft) {
  {
    Claims first(folder_.path(), kQuick);
    Claims second(folder_.path(), kQuick);
    std::string holder;
    EXPECT_EQ(first.claim("a", nullptr), ClaimAnswer::kMine);
    EXPECT_TRUE(first.is_still_mine("a"));
    EXPECT_EQ(second.claim("a", &holder), ClaimAnswer::kBusy);
    EXPECT_THAT(holder, HasSubstr("pid " + std::to_string(::getpid()) + " on "));
    EXPECT_FALSE(second.is_still_mine("a"));
    EXPECT_EQ(second.claim("b", nullptr), ClaimAnswer::kMine);
    second.release("a");  // not its own
    EXPECT_EQ(second.claim("a", nullptr), ClaimAnswer::kBusy);
    first.release("a");
    EXPECT_EQ(second.claim("a", nullptr), ClaimAnswer::kMine);
    EXPECT_EQ(first.claim("a", nullptr), ClaimAnswer::kBusy);
  }
  EXPECT_EQ(files(), std::set<std::string>{});
}

TEST_F(ClaimsTest, KilledOwnersClaimIsFreeAtOnce) {
  Claims claims(folder_.path());
  leave_claim("a");
  EXPECT_TRUE(files().contains("a.1.claim"));
  folder_.file("a.h5.node7-12.servelab-tmp", "half");
  folder_.file("b.h5.node7-12.servelab-tmp", "of another point");
  EXPECT_EQ(claims.claim("a", nullptr), ClaimAnswer::kMine);
  EXPECT_TRUE(claims.is_still_mine("a"));
  EXPECT_FALSE(files().contains("a.h5.node7-12.servelab-tmp"));
  EXPECT_TRUE(files().contains("b.h5.node7-12.servelab-tmp"));
  claims.release("a");
  EXPECT_FALSE(files().contains("a.1.claim"));
  EXPECT_FALSE(files().contains("a.2.claim"));
}

TEST_F(ClaimsTest, OwnerThatWasKilledButNotWaitedForIsGone) {
  const pid_t child = fork_and([&] {
    Claims claims(folder_.path());
    claims.claim("a", nullptr);
    folder_.file("ready", "");
    ::pause();
  });
  ASSERT_TRUE(test::wait_for_files(folder_.path(), 1, "ready"));
  Claims claims(folder_.path());
  EXPECT_EQ(claims.claim("a", nullptr), ClaimAnswer::kBusy);
  ::kill(child, SIGKILL);
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);  // it stays a zombie
  EXPECT_EQ(claims.claim("a", nullptr), ClaimAnswer::kMine);
  reap(child);
}

TEST_F(ClaimsTest, ProcessIdThatWasGivenAgainIsNotTheOwner) {
  ClaimOwner old = ClaimOwner::this_process();
  old.start = "1";  // this process's id, but started earlier
  Claims dead(folder_.path(), kQuick, old);
  ASSERT_EQ(dead.claim("a", nullptr), ClaimAnswer::kMine);
  Claims claims(folder_.path(), kQuick);
  EXPECT_EQ(claims.claim("a", nullptr), ClaimAnswer::kMine);
}

TEST_F(ClaimsTest, AnotherMachinesOwnerLivesWhileItGivesSigns) {
  Claims there(folder_.path(), kQuick, elsewhere());
  ASSERT_EQ(there.claim("a", nullptr), ClaimAnswer::kMine);
  Claims here(folder_.path(), kQuick);
  std::string holder;
  EXPECT_EQ(here.claim("a", &holder), ClaimAnswer::kUnclear);
  EXPECT_EQ(holder, "pid 7 on node7 (Slurm job 3_1)");
  for (int i = 0; i < 25; ++i) {  // for longer than the limit
    std::this_thread::sleep_for(milliseconds(20));
    EXPECT_EQ(here.claim("a", nullptr), ClaimAnswer::kBusy);
  }
}

TEST_F(ClaimsTest, SilentOwnersClaimIsTakenOverOnceAndItNotices) {
  Claims silent(folder_.path(), kSilent, elsewhere());
  ASSERT_EQ(silent.claim("a", nullptr), ClaimAnswer::kMine);
  Claims here(folder_.path(), kQuick);
  Claims third(folder_.path(), kQuick, elsewhere(8));
  EXPECT_EQ(here.claim("a", nullptr), ClaimAnswer::kUnclear);
  EXPECT_EQ(third.claim("a", nullptr), ClaimAnswer::kUnclear);
  EXPECT_TRUE(silent.is_still_mine("a"));
  std::this_thread::sleep_for(milliseconds(220));
  EXPECT_EQ(here.claim("a", nullptr), ClaimAnswer::kMine);
  EXPECT_NE(third.claim("a", nullptr), ClaimAnswer::kMine);  // the new owner's time starts anew
  EXPECT_FALSE(silent.is_still_mine("a"));
  silent.release("a");  // must not open a gap below its successor
  EXPECT_TRUE(files().contains("a.1.claim"));
  EXPECT_TRUE(here.is_still_mine("a"));
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(third.claim("a", nullptr), ClaimAnswer::kBusy);
  here.release("a");
  EXPECT_FALSE(files().contains("a.1.claim"));
  EXPECT_FALSE(files().contains("a.2.claim"));
}

TEST_F(ClaimsTest, FileThatIsNoClaimOfOursCountsAsAnotherMachines) {
  folder_.file("a.1.claim", "");
  Claims here(folder_.path(), kQuick);
  EXPECT_EQ(here.claim("a", nullptr), ClaimAnswer::kUnclear);
  std::this_thread::sleep_for(milliseconds(220));
  EXPECT_EQ(here.claim("a", nullptr), ClaimAnswer::kMine);
}

TEST_F(ClaimsTest, LeftoversGoAndWhatIsInUseStays) {
  leave_claim("done");
  leave_claim("open");
  folder_.file("done.h5", "");
  folder_.file("lone.h5.node7-12.servelab-tmp", "half");
  Claims there(folder_.path(), kSilent, elsewhere());
  Claims here(folder_.path(), kQuick);
  ASSERT_EQ(there.claim("x", nullptr), ClaimAnswer::kMine);
  ASSERT_EQ(here.claim("y", nullptr), ClaimAnswer::kMine);
  folder_.file("y.h5", "");  // saved, and about to be released
  folder_.file("x.h5.node7-7.servelab-tmp", "being written");
  remove_leftovers(folder_.path());
  std::set<std::string> kept = files();
  std::erase_if(kept, [](const std::string& name) { return name.ends_with(".worker"); });
  EXPECT_EQ(kept, (std::set<std::string>{"done.h5", "open.1.claim", "x.1.claim", "y.h5",
                                         "y.1.claim", "x.h5.node7-7.servelab-tmp"}));
  EXPECT_EQ(files().size() - kept.size(), 2u) << "the files of the two that live";
}

TEST_F(ClaimsTest, FolderThatIsNotThereIsAnError) {
  Claims claims(folder_ / "nowhere");
  EXPECT_THROW(claims.claim("a", nullptr), SpecError);
}

// Computes every key that nobody has: exclusively, as a lock for tests alone checks, and once.
void compute_all(const std::string& folder, int keys, unsigned seed) {
  std::mt19937 random(seed);
  Claims claims(folder);
  for (int left = keys; left > 0;) {
    left = 0;
    for (int k = 0; k < keys; ++k) {
      const std::string key = "k" + std::to_string(k);
      const std::string point = folder + "/" + key + ".h5";
      if (fs::exists(point)) continue;
      ++left;
      if (claims.claim(key, nullptr) != ClaimAnswer::kMine) continue;
      if (!fs::exists(point)) {
        const int witness =
            ::open((folder + "/" + key + ".witness").c_str(), O_RDWR | O_CREAT, 0600);
        if (::flock(witness, LOCK_EX | LOCK_NB) != 0) test::write_file(folder + "/TWICE", key);
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
        const int made = ::open((point + ".new").c_str(), O_WRONLY | O_CREAT, 0600);
        if (!claims.is_still_mine(key)) test::write_file(folder + "/LOST", key);
        if (::link((point + ".new").c_str(), point.c_str()) != 0) {
          test::write_file(folder + "/AGAIN", key);
        }
        ::unlink((point + ".new").c_str());
        ::close(made);
        ::close(witness);
      }
      claims.release(key);
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
    EXPECT_FALSE(name.ends_with(".claim") || name.ends_with(".worker")) << name;
  }
}

}  // namespace
}  // namespace servelab
