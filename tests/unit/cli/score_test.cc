// servelab score: the lines it takes, what it refuses, and that it chooses as the policy does.
#include "engine/cli/score.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/core/registry.h"
#include "tests/support/program.h"
#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// 24 requests of rank 32 on `a`, 16 of rank 64 on `b` (CaraServe 2.3, Fig. 5).
constexpr const char* kServers =
    R"({"server": "a", "running": {"requests": 24, "sum": 768, "max": 32}})"
    "\n"
    R"({"server": "b", "running": [64,64,64,64,64,64,64,64,64,64,64,64,64,64,64,64]})"
    "\n";
constexpr const char* kBgmv =
    R"({"config": {"kernel": "bgmv", "prefill": {"alpha_ms": 0.0036, "beta_ms": 32.07},)"
    R"( "decode": {"alpha_ms": 0.0036, "beta_ms": 32.07}, "slo_ms": 36}})"
    "\n";
constexpr const char* kMbgmv =
    R"({"config": {"kernel": "mbgmv", "prefill": {"alpha_ms": 0.00234375, "beta_ms": 33.5},)"
    R"( "decode": {"alpha_ms": 0.00234375, "beta_ms": 33.5}, "slo_ms": 36}})"
    "\n";
constexpr const char* kRequest = "{\"request\": \"r\", \"rank\": 64}\n";

struct Answers {
  std::vector<json> lines;
  std::size_t bad = 0;
};

Answers answers(const std::string& text) {
  Scorer scorer(std::nullopt, {.output_tokens = 60, .slo_ms = 0, .penalty_ms = 1e3});
  std::istringstream in(text);
  std::ostringstream out;
  Answers got;
  got.bad = score_lines(&scorer, in, out);
  std::istringstream lines(out.str());
  for (std::string line; std::getline(lines, line);) got.lines.push_back(json::parse(line));
  return got;
}

TEST(Score, ChoosesAsThePapersExampleDoes) {
  const Answers got = answers(std::string(kServers) + kBgmv + kRequest + kMbgmv + kRequest);
  ASSERT_EQ(got.lines.size(), 2u);
  EXPECT_EQ(got.bad, 0u);
  EXPECT_EQ(got.lines[0]["request"], "r");
  EXPECT_EQ(got.lines[0]["server"], "b") << "bgmv: rank 64 pads the 24 requests of a";
  EXPECT_EQ(got.lines[1]["server"], "a") << "mbgmv: b would miss the SLO";
  // a: 64 / 60 ms of prefill and 64 of decode at alpha, for 24 requests.
  EXPECT_NEAR(got.lines[1]["costs_ms"]["a"], 24 * (64 / 60.0 + 64) * 0.00234375, 1e-9);
  EXPECT_NEAR(got.lines[1]["costs_ms"]["b"], 16 * ((64 / 60.0 + 64) * 0.00234375 + 1e3), 1e-6);
}

TEST(Score, ALineReplacesAServerAndCandidatesNameThem) {
  const Answers got =
      answers(std::string(kMbgmv) + R"({"server": "a", "running": [8, 8], "queued": [0, 16]}
{"server": "b", "running": [8], "queued": {"requests": 0, "sum": 0, "max": 0, "base": 5}}
{"request": "base", "rank": 0}

{"request": "of two", "rank": 8, "servers": ["b", "a"]}
{"server": "a"}
{"server": "c"}
{"request": "first of equals", "rank": 8, "servers": ["c", "a"]}
{"request": "in order", "rank": 8}
{"server": "a", "gone": true}
{"request": "gone", "rank": 8})");
  ASSERT_EQ(got.lines.size(), 5u);
  EXPECT_EQ(got.lines[0]["costs_ms"], json({{"a", 4.0}, {"b", 6.0}}));
  EXPECT_EQ(got.lines[1]["server"], "a");
  EXPECT_EQ(got.lines[2]["server"], "c");
  EXPECT_EQ(got.lines[3]["server"], "a");
  EXPECT_EQ(got.lines[4]["server"], "c");
  EXPECT_FALSE(got.lines[4]["costs_ms"].contains("a"));
  EXPECT_EQ(got.bad, 0u);
}

struct BadLine {
  std::string line;
  const char* says;
};

TEST(Score, ABadLineIsAnsweredAndTheStreamGoesOn) {
  const std::string long_line = R"({"server": ")" + std::string(kMostScoreLineBytes, 'x') + "\"}";
  const std::vector<BadLine> bad = {
      {"what", "is not JSON"},
      {R"({"request": "r", "rank": 1e999})", "beyond any double"},
      {R"({"request": "r", "rank": NaN})", "is not JSON"},
      {"{\"server\": \"\xff\"}", "is not JSON"},
      {std::string(kMostScoreLineBytes / 2, '['), "is not JSON"},
      {std::string(100, '[') + std::string(100, ']'), "nested deeper"},
      {long_line, "longer than 65536 bytes"},
      {"3", "must hold a JSON object"},
      {"{}", "one of the keys config, server, request"},
      {R"({"server": "a", "request": "r"})", "one of the keys"},
      {R"({"server": "a", "server": "b"})", "duplicate key 'server'"},
      {R"({"server": 3})", "'server' must be text; got 3"},
      {R"({"server": ""})", "1 to 256 bytes"},
      {R"({"server": ")" + std::string(257, 'x') + "\"}", "1 to 256 bytes"},
      {R"({"server": "a", "runing": []})", "did you mean 'running'"},
      {R"({"server": "a", "running": [-8]})", "ranks, whole numbers from 0 to 65536; it holds -8"},
      {R"({"server": "a", "running": [8.5]})", "it holds 8.5"},
      {R"({"server": "a", "running": [18446744073709551615]})", "it holds 1844674407370955"},
      {R"({"server": "a", "running": 3})", "must be a list of ranks"},
      {R"({"server": "a", "running": {"requests": 1e308, "sum": 1, "max": 1}})",
       "'running.requests'"},
      {R"({"server": "a", "running": {"requests": -1, "sum": 1, "max": 1}})", "from 0 to 1000000"},
      {R"({"server": "a", "running": {"requests": 2, "sum": 9, "max": 4}})", "cannot be"},
      {R"({"server": "a", "running": {"requests": 0, "sum": 0, "max": 8}})", "cannot be"},
      {R"({"server": "a", "running": {"requests": 2, "sum": 1.5, "max": 1}})", "cannot be"},
      {R"({"server": "a", "queued": {"requests": 1, "sum": 8}})", "'queued.max' is missing"},
      {R"({"server": "z", "gone": true})", "unknown server 'z'"},
      {R"({"request": "r"})", "'rank' is missing"},
      {R"({"request": "r", "rank": -1})", "from 0 to 65536"},
      {R"({"request": "r", "rank": 8, "servers": ["z"]})", "known: a, b"},
      {R"({"request": "r", "rank": 8, "servers": ["a", "a"]})", "names 'a' twice"},
      {R"({"request": "r", "rank": 8, "servers": [1]})", "list of texts"},
      {R"({"config": 3})", "must hold a JSON object"},
      {R"({"config": {}, "rank": 3})", "unknown key 'rank'"},
      {R"({"config": {"slo": 3}})", "unknown key 'slo'; known: kernel"},
      {R"({"config": {"slo_ms": 0}})", "'slo_ms' must be a number from 0.001"},
      {R"({"config": {"slo_ms": -1, "penalty_ms": 0}})", "'slo_ms'"},
      {R"({"config": {"output_tokens": 0}})", "'output_tokens'"},
      {R"({"config": {"kernel": "mbgmv"}})", "'prefill' is missing"},
      {R"({"config": {"kernel": "gmv"}})", "known:"},
      {R"({"config": {"decode": {"alpha_ms": 1, "beta_ms": 1}}})", "'kernel' must be one of"},
      {R"({"config": {"kernel": "bgmv", "prefill": {"alpha_ms": -1, "beta_ms": 1}}})",
       "'prefill.alpha_ms' must be a number"},
  };
  std::string text = std::string(kServers) + kBgmv;
  for (const BadLine& each : bad) text += each.line + "\n";
  const Answers got = answers(text + kRequest);
  ASSERT_EQ(got.lines.size(), bad.size() + 1);
  EXPECT_EQ(got.bad, bad.size());
  for (std::size_t i = 0; i < bad.size(); ++i) {
    EXPECT_EQ(got.lines[i]["line"], i + 4);
    EXPECT_THAT(got.lines[i]["error"].get<std::string>(), HasSubstr(bad[i].says))
        << bad[i].line.substr(0, 80);
  }
  EXPECT_EQ(got.lines.back(), answers(std::string(kServers) + kBgmv + kRequest).lines.front())
      << "bad lines change nothing";
}

TEST(Score, NeedsAModelAndServers) {
  EXPECT_THAT(answers(kRequest).lines[0]["error"].get<std::string>(), HasSubstr("--model FILE"));
  EXPECT_THAT(answers(std::string(kBgmv) + kRequest).lines[0]["error"].get<std::string>(),
              HasSubstr("send server lines first"));
  std::string many;
  for (std::size_t i = 0; i <= kMostScoreServers; ++i) {
    many += "{\"server\": \"" + std::to_string(i) + "\"}\n";
  }
  EXPECT_EQ(answers(many).bad, 1u);
}

TEST(Score, TheProgramReadsFilesAndModelsAndFailsAtTheEnd) {
  const test::TemporaryFolder folder;
  const std::string model = folder.file("m.yaml",
                                        "bgmv:\n  prefill: {alpha_ms: 0.0036, beta_ms: 32.07}\n"
                                        "  decode: {alpha_ms: 0.0036, beta_ms: 32.07}\n");
  const std::string good = folder.file("good", std::string(kServers) + kRequest);
  const auto score = [&](const std::string& lines, const std::string& slo) {
    return test::run_program(
        {"score", lines, "--model", model, "--kernel", "bgmv", "--slo-ms", slo});
  };
  const test::ProgramResult chosen = score(good, "36");
  EXPECT_EQ(chosen.code, 0) << chosen.err;
  EXPECT_EQ(json::parse(chosen.out)["server"], "b");
  const test::ProgramResult bad = score(folder.file("bad", "{\n" + test::read_file(good)), "36");
  EXPECT_EQ(bad.code, 1);
  EXPECT_THAT(bad.out, HasSubstr("\"line\":1}\n{\"request\":\"r\",\"server\":\"b\""));
  EXPECT_THAT(bad.err, HasSubstr("1 bad line;"));
  EXPECT_EQ(score(good, "0").code, 2);
  EXPECT_EQ(score(folder / "none", "36").code, 2);
  EXPECT_EQ(test::run_program({"score", good, "--model", model}).code, 2) << "it has no mbgmv";
}

// --- against the policy ---

// Routes by rank-aware, and asks score of the same cluster.
class Compared final : public ClusterPolicy {
 public:
  Compared(const std::string& params, const std::string& config, int* routed)
      : policy_(Registry<ClusterPolicy>::instance().make("rank-aware")),
        scorer_(std::nullopt, {.output_tokens = 60, .slo_ms = 0, .penalty_ms = 1e3}),
        routed_(routed) {
    bind_params(parse_yaml(params, "params"), "rank-aware", policy_.get());
    scorer_.answer(config);
  }
  void begin(const ClusterView& view) override { policy_->begin(view); }
  void on_finished(const FinishedRequest& request) override {
    policy_->on_finished(request);
    tokens_ += request.output_tokens;
    const double mean = static_cast<double>(tokens_) / static_cast<double>(++finished_);
    scorer_.answer(json{{"config", {{"output_tokens", mean}}}}.dump());
  }
  ReplicaId route(const RoutedRequest& request, const ClusterView& view) override {
    const auto rank_of = [&](AdapterId adapter) {
      return adapter == kBaseModel ? 0 : view.adapter_table()[index(adapter)].rank;
    };
    for (const ReplicaView* replica : view.replicas()) {
      json line = {{"server", name(replica->id())}, {"running", json::array()}};
      const auto list = [&](const char* key, std::span<const RequestId> ids) {
        for (const RequestId id : ids) line[key].push_back(rank_of(replica->request(id).adapter()));
      };
      list("queued", replica->waiting());
      list("running", replica->running());
      list("running", replica->swapped());
      scorer_.answer(line.dump());
    }
    const ReplicaId chosen = policy_->route(request, view);
    const json asked = {{"request", "r"}, {"rank", rank_of(request.adapter)}};
    EXPECT_EQ(json::parse(scorer_.answer(asked.dump()))["server"], name(chosen)) << *routed_;
    ++*routed_;
    return chosen;
  }

 private:
  static std::string name(ReplicaId id) { return "replica " + std::to_string(index(id)); }

  std::unique_ptr<ClusterPolicy> policy_;
  Scorer scorer_;
  int* routed_;
  std::int64_t tokens_ = 0, finished_ = 0;
};

TEST(Score, ChoosesAsThePolicyOnTenThousandClusters) {
  int routed = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    test::WorkloadShape shape;
    shape.requests = 250;
    shape.adapters = 16;
    shape.rate_per_s = 200 + 40.0 * static_cast<double>(seed);
    shape.max_prompt = 60;
    Workload workload = test::make_workload(shape, seed);
    for (std::size_t i = 0; i < workload.adapters.size(); ++i) {
      workload.adapters[i].rank = 8 << ((i + seed) % 5);
    }
    test::RunOptions options;
    options.engine = test::small_engine();
    options.replicas = 2 + static_cast<int>(seed % 7);
    const std::string kernel = seed % 2 == 0 ? "bgmv" : "mbgmv";
    const double alpha = 0.001 * static_cast<double>(1 + seed % 5);
    const json config = {{"kernel", kernel},
                         {"prefill", {{"alpha_ms", 3 * alpha}, {"beta_ms", 20}}},
                         {"decode", {{"alpha_ms", alpha}, {"beta_ms", 30}}},
                         {"slo_ms", 31 + static_cast<double>(seed % 4)},
                         {"penalty_ms", seed % 4 == 3 ? 0.0 : 50.0},
                         {"idle_is_free", seed % 3 == 0}};
    const json params = {{"kernel", kernel},
                         {"prefill_alpha_ms", 3 * alpha},
                         {"prefill_beta_ms", 20},
                         {"decode_alpha_ms", alpha},
                         {"decode_beta_ms", 30},
                         {"slo_ms", config["slo_ms"]},
                         {"penalty_ms", config["penalty_ms"]},
                         {"idle_is_free", config["idle_is_free"]}};
    options.cluster_policy = [&] {
      return std::make_unique<Compared>(params.dump(), json{{"config", config}}.dump(), &routed);
    };
    const RunRecord record = test::run(workload, options);
    EXPECT_EQ(test::violation(workload, record), "");
    ASSERT_FALSE(testing::Test::HasFailure()) << seed;
  }
  EXPECT_EQ(routed, 10'000);
}

}  // namespace
}  // namespace servelab
