// How ranks meet: who is missing or does not belong is named, all who came are told, and strangers
// hold nobody up.
#include "engine/backend/ranks/gathering.h"
#include "tests/unit/backend/rank_group_testing.h"

namespace servelab::ranks {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Gathering : public RankGroupTest {};

TEST_F(Gathering, RanksThatDoNotComeAreNamed) {
  start(2, 4);
  const auto began = Clock::now();
  EXPECT_THAT(error_of([&] { RankGroup group(group_settings(4)); }),
              AllOf(HasSubstr("ranks 1, 3 of 4 did not come to 127.0.0.1:"),
                    HasSubstr(" within 1 s; --ranks-timeout gives them longer")));
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(10));
  EXPECT_THAT(end_of(0), AllOf(HasSubstr("rank 0 refused: "), HasSubstr("ranks 1, 3 of 4")));
}

TEST_F(Gathering, AWorkerDoesNotWaitForEverForRank0) {
  start(1, 2);
  EXPECT_THAT(end_of(0), HasSubstr("rank 0 cannot be reached at 127.0.0.1:"));
}

TEST_F(Gathering, WhoDoesNotBelongIsRefusedAndAllAreTold) {
  struct Case {
    std::function<void(WorkerSettings*)> change;
    const char* says;
  };
  const std::vector<Case> cases = {
      {[](WorkerSettings* w) { w->identity.build = "another build"; },
       "is of another build of servelab (another build, rank 0 is this build)"},
      {[](WorkerSettings* w) { w->identity.models = "others"; }, "read other models"},
      {[](WorkerSettings* w) { w->ranks = 5; }, "counts 5 ranks, and rank 0 3"},
      {[](WorkerSettings* w) { w->rank = 0; }, "is none of the ranks 1 to 2"},
      {[](WorkerSettings* w) { w->rank = 1; }, "is there twice: process "},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.says);
    workers_.clear();
    start(1, 3);
    WorkerSettings wrong = worker_settings(2, 3);
    each.change(&wrong);
    start(wrong);
    EXPECT_THAT(error_of([&] { RankGroup group(group_settings(3)); }), HasSubstr(each.says));
    const std::string first = end_of(0);
    const std::string second = end_of(1);
    EXPECT_TRUE(first.find(each.says) != std::string::npos ||
                second.find(each.says) != std::string::npos)
        << first << "\n"
        << second;
    EXPECT_THAT(first + second, Not(HasSubstr("exit ")));
  }
}

// Connections that are not ours, or that say nothing, hold nobody up.
TEST_F(Gathering, StrangersAreTurnedAway) {
  auto gathered = std::async(
      std::launch::async, [this] { return error_of([&] { RankGroup group(group_settings(2)); }); });
  std::vector<std::unique_ptr<Connection>> strangers;
  const auto connect = [&]() -> Connection& {
    return *strangers.emplace_back(std::make_unique<Connection>(
        connect_to({"127.0.0.1", port_}, Clock::now() + std::chrono::seconds(1))));
  };
  connect();  // says nothing
  WireWriter text;
  text.text("GET / HTTP/1.1");
  connect().send('G', text);
  connect().send(static_cast<std::uint8_t>(Message::kHello), text);
  WireWriter large;
  large.bytes(std::vector<std::byte>(kMostHelloBytes + 1));
  connect().send(static_cast<std::uint8_t>(Message::kHello), large);
  Hello hello = {{"this build", "these models"}, 1, 2, Purpose::kSteps, 1, "here", 1};
  WireWriter old = encode_hello(hello);
  std::vector<std::byte> bytes = old.data();
  bytes[4] = std::byte{99};  // the version
  WireWriter other_version;
  other_version.bytes(bytes);
  connect().send(static_cast<std::uint8_t>(Message::kHello), other_version);
  for (std::size_t i = 1; i < strangers.size(); ++i) {
    EXPECT_EQ(error_of([&] {
                strangers[i]->receive(Clock::now() + std::chrono::seconds(1));
              }).substr(0, 20),
              "the connection ended")
        << i;
  }
  EXPECT_THAT(gathered.get(), HasSubstr("rank 1 of 2 did not come"));
}

TEST_F(Gathering, AStopEndsTheWaiting) {
  stop_ = 15;
  GroupSettings settings = group_settings(2);
  settings.stop = &stop_;
  EXPECT_EQ(error_of([&] { RankGroup group(settings); }), "stopped");
  start(1, 2);
  EXPECT_EQ(end_of(0), "stopped");
}

}  // namespace
}  // namespace servelab::ranks
