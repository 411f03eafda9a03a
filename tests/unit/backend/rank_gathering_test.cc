// How ranks meet: who is missing or does not belong is named, all who came are told, and strangers
// hold nobody up.
#include <filesystem>

#include "engine/backend/ranks/gathering.h"
#include "tests/support/program.h"
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

// Whoever reaches the port can say that; it does not end the run.
TEST_F(Gathering, WithoutASecretWhoDoesNotBelongIsRefusedAlone) {
  secret_.text.clear();
  WorkerSettings wrong = worker_settings(1, 2);
  wrong.identity.build = "another build";
  start(wrong);
  auto gathered = std::async(
      std::launch::async, [this] { return error_of([&] { RankGroup group(group_settings(2)); }); });
  EXPECT_THAT(end_of(0), HasSubstr("rank 0 refused: rank 1"));
  start(1, 2);
  EXPECT_EQ(gathered.get(), "");
  workers_.clear();
  start(wrong);
  EXPECT_THAT(error_of([&] { RankGroup group(group_settings(2)); }),
              AllOf(HasSubstr("rank 1 of 2 did not come"), HasSubstr("is of another build")));
}

TEST_F(Gathering, WhoDoesNotKnowTheSecretIsDropped) {
  for (const char* const theirs : {"", "another secret of this test"}) {
    workers_.clear();
    auto gathered = std::async(std::launch::async, [this] {
      return error_of([&] { RankGroup group(group_settings(2)); });
    });
    WorkerSettings stranger = worker_settings(1, 2);
    stranger.secret.text = theirs;
    start(stranger);
    EXPECT_THAT(end_of(0), HasSubstr("has it the same secret"));
    start(1, 2);
    EXPECT_EQ(gathered.get(), "") << theirs;
  }
  workers_.clear();
  WorkerSettings stranger = worker_settings(1, 2);
  stranger.secret.text.clear();
  start(stranger);
  EXPECT_THAT(error_of([&] { RankGroup group(group_settings(2)); }),
              HasSubstr("did not come to 127.0.0.1:"));
}

// A worker gives nothing away to one who only listens at the right place, and takes no orders.
TEST_F(Gathering, ARank0ThatDoesNotKnowTheSecretIsLeft) {
  const Descriptor listener = listen_at({"127.0.0.1", port_}, Reach::kThisMachine);
  start(1, 2);
  Connection worker(Descriptor(::accept4(listener.number(), nullptr, nullptr, SOCK_CLOEXEC)));
  WireWriter challenge;
  challenge.bytes(draw_random_number());
  worker.send(static_cast<std::uint8_t>(Message::kChallenge), challenge);
  const Frame frame = worker.receive(Clock::now() + std::chrono::seconds(1));
  EXPECT_EQ(frame.kind, static_cast<std::uint8_t>(Message::kWorkerProof));
  WireWriter proof;
  proof.bytes(draw_random_number());
  worker.send(static_cast<std::uint8_t>(Message::kRank0Proof), proof);
  EXPECT_THAT(end_of(0), HasSubstr("does not know the ranks' secret"));
}

TEST_F(Gathering, WithoutASecretNobodyMeetsOnANetwork) {
  const std::string says = "is on a network, where ranks have to prove that they belong";
  secret_.text.clear();
  GroupSettings settings = group_settings(2);
  settings.at.host = "0.0.0.0";
  EXPECT_THAT(error_of([&] { RankGroup group(settings); }), HasSubstr(says));
  WorkerSettings worker = worker_settings(1, 2);
  worker.at.host = "192.0.2.1";
  EXPECT_THAT(error_of([&] { serve_rank(worker); }), HasSubstr(says));
  secret_.is_open = true;
  settings = group_settings(2);
  settings.at.host = "0.0.0.0";
  EXPECT_THAT(error_of([&] { RankGroup group(settings); }), HasSubstr("did not come"));
}

TEST_F(Gathering, SecretsAreFilesOfTheirOwnerOnly) {
  const test::TemporaryFolder folder;
  const std::string file = folder.file("secret", "0123456789abcdef\n");
  namespace fs = std::filesystem;
  fs::permissions(file, fs::perms::owner_read | fs::perms::group_read);
  EXPECT_THAT(error_of([&] { read_secret(file); }), HasSubstr("others can read it"));
  fs::permissions(file, fs::perms::owner_read);
  EXPECT_EQ(read_secret(file), "0123456789abcdef");
  const std::string small = folder.file("short", "0123456789\n");
  fs::permissions(small, fs::perms::owner_read);
  EXPECT_THAT(error_of([&] { read_secret(small); }), HasSubstr("fewer than 16 bytes"));
  EXPECT_THAT(error_of([&] { read_secret(folder.path()); }), HasSubstr("not a regular file"));
  EXPECT_THAT(error_of([&] { read_secret(folder / "none"); }), HasSubstr("No such file"));
}

// Connections that are not ours, or that say nothing, hold nobody up.
TEST_F(Gathering, StrangersAreTurnedAway) {
  auto gathered = std::async(
      std::launch::async, [this] { return error_of([&] { RankGroup group(group_settings(2)); }); });
  std::vector<std::unique_ptr<Connection>> strangers;
  const auto connect = [&]() -> Connection& {
    return *strangers.emplace_back(std::make_unique<Connection>(connect_to(
        {"127.0.0.1", port_}, Reach::kThisMachine, Clock::now() + std::chrono::seconds(1))));
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
    EXPECT_EQ(strangers[i]->receive(Clock::now() + std::chrono::seconds(1)).kind,
              static_cast<std::uint8_t>(Message::kChallenge));
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
