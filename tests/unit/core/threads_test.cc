// Threads that there is no room for end nothing but what asked for them.
#include "engine/core/threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <fstream>

#include "engine/backend/device/rank_team.h"
#include "engine/backend/device/thread_team.h"
#include "tests/support/error_of.h"

namespace servelab {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

// Room for 256 MiB more, which are the stacks of 32 threads.
void leave_little_room() {
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  const rlim_t limit = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (256U << 20);
  const rlimit room{limit, limit};
  ::setrlimit(RLIMIT_AS, &room);
}

// In a process of its own: the message on stderr, after "stopped" where the others were told to.
template <class Make>
[[noreturn]] void say_why(const Make& make) {
  leave_little_room();
  const std::string why = test::error_of(make);
  std::fputs(why.c_str(), stderr);
  std::_Exit(why.empty() ? 1 : 0);
}

const auto kNoRoom = AllOf(HasSubstr("no room for thread "), HasSubstr(" of 100"),
                           HasSubstr("allow more processes (ulimit -u) or memory"));

TEST(Threads, AllOfThemRun) {
  std::atomic<int> sum{0};
  for (std::thread& thread : start_threads(
           10, [&](int i) { sum += i; }, [] {}))
    thread.join();
  EXPECT_EQ(sum, 45);
  EXPECT_TRUE(start_threads(
                  0, [](int) {}, [] {})
                  .empty());
}

TEST(Threads, WithoutRoomTheOthersAreStopped) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer ends a process without room";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto many = [] {
    std::atomic<bool> over{false};
    const auto wait = [&](int) { over.wait(false); };
    (void)start_threads(1000, wait, [&] {
      std::fputs("stopped: ", stderr);
      over = true;
      over.notify_all();
    });
  };
  EXPECT_EXIT(say_why(many), ::testing::ExitedWithCode(0), AllOf(StartsWith("stopped: "), kNoRoom));
}

TEST(Threads, TeamsWithoutRoomAreOneMessage) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer ends a process without room";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(say_why([] { ThreadTeam(1001, {}); }), ::testing::ExitedWithCode(0), kNoRoom);
  EXPECT_EXIT(say_why([] { RankTeam(1000); }), ::testing::ExitedWithCode(0), kNoRoom);
}

}  // namespace
}  // namespace servelab
