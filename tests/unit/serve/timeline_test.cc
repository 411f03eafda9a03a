#include "engine/serve/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "engine/core/check.h"
#include "engine/core/rng.h"

namespace servelab {
namespace {

TEST(Timeline, OrderIsTimeThenKindThenSequence) {
  VirtualTimeline timeline;
  timeline.post(5, EventKind::kArrival, 1);
  timeline.post(5, EventKind::kStepDone, 2);
  timeline.post(3, EventKind::kRebalance, 3);
  timeline.post(5, EventKind::kArrival, 4);
  timeline.post(5, EventKind::kLoadDone, 5);
  std::vector<std::uint64_t> order;
  Event event;
  while (timeline.next(&event)) order.push_back(event.subject);
  EXPECT_EQ(order, (std::vector<std::uint64_t>{3, 2, 5, 1, 4}));
  EXPECT_EQ(timeline.now(), 5);
}

TEST(Timeline, AgreesWithASortedListOverRandomHistories) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    RngStream rng(seed, "timeline");
    VirtualTimeline timeline;
    std::vector<Event> naive;
    for (int i = 0; i < 400; ++i) {
      if (rng.uniform() < 0.6 || naive.empty()) {
        Event e{timeline.now() + static_cast<TimeNs>(rng.below(6)),
                static_cast<EventKind>(rng.below(5)), 0, rng.below(1000)};
        e.seq = timeline.post(e.at, e.kind, e.subject);
        naive.push_back(e);
      } else {
        const auto first = std::min_element(naive.begin(), naive.end(), before);
        EXPECT_EQ(timeline.more_now(), first->at == timeline.now());
        Event event;
        ASSERT_TRUE(timeline.next(&event));
        EXPECT_EQ(event.seq, first->seq);
        EXPECT_EQ(event.subject, first->subject);
        naive.erase(first);
      }
    }
  }
}

TEST(Timeline, NothingIsPostedInThePast) {
  VirtualTimeline timeline;
  timeline.post(10, EventKind::kArrival, 0);
  Event event;
  ASSERT_TRUE(timeline.next(&event));
  EXPECT_THROW(timeline.post(9, EventKind::kArrival, 0), InvariantError);
}

TEST(RealTimeline, WaitsAndStampsStrictlyIncrease) {
  RealTimeline timeline;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 5; ++i) timeline.post(20'000'000, EventKind::kArrival, 0);
  timeline.expect_external(1);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    timeline.post_now(EventKind::kStepDone, 7);
  });
  TimeNs last = 0;
  std::uint64_t subject = 0;
  Event event;
  int events = 0;
  while (timeline.next(&event)) {
    EXPECT_GT(event.at, last);
    last = event.at;
    subject = event.subject;
    ++events;
  }
  other.join();
  EXPECT_EQ(events, 6);
  EXPECT_EQ(subject, 7u);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(40));
}

}  // namespace
}  // namespace servelab
