// The lines of servelab score: CaraServe's Algorithm 1 (5) for routers that are not ours. JSON, one
// object a line.
//
//   {"config": {"kernel": "bgmv", "prefill": {"alpha_ms": 0.02, "beta_ms": 28},
//               "decode": {"alpha_ms": 0.0036, "beta_ms": 32.07}, "slo_ms": 36, "penalty_ms": 1000,
//               "output_tokens": 60, "idle_is_free": false}}
//   {"server": "a", "running": [32, 32, 0], "queued": {"requests": 2, "sum": 96, "max": 64}}
//   {"server": "b", "gone": true}
//   {"request": "r1", "rank": 64, "servers": ["a", "c"]}
//
// config: what it names changes from the next line on; kernel, prefill and decode go together.
// Latencies are in ms; output_tokens is the average response's length. Without slo_ms there is no
// penalty. Options say the same before the first line.
// server: its whole state, in place of what was said of it before; `gone` forgets it. Sets of
// requests are lists of ranks, 0 for the base model, or counts: `base` is its requests in these
// (default 0), which `requests`, `sum` and `max` leave out. An absent set is empty.
// request: is answered by one line; `servers` are the candidates (absent: every server). The choice
// costs least; of equals the first, by `servers` or by when each was first heard of. It is not
// added to the server: only server lines change what is known.
//   {"request": "r1", "server": "a", "costs_ms": {"a": 12.5, "c": 80.1}}
// A rank 0 request's costs are the numbers of requests.
// Whatever is wrong with a line is answered in its place, and the line changes nothing:
//   {"error": "request: unknown server 'x'; known: a, c", "line": 7}
#ifndef SERVELAB_CLI_SCORE_H_
#define SERVELAB_CLI_SCORE_H_

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "baselines/shared/rank_cost.h"

namespace servelab {

inline constexpr std::size_t kMostScoreLineBytes = std::size_t{1} << 16;
inline constexpr std::size_t kMostScoreServers = 4096;

// What lines and options may say.
inline constexpr double kMostMs = 1e6;
inline constexpr double kLeastSloMs = 1e-3;
inline constexpr double kMostPenaltyMs = 1e12;
inline constexpr double kMostOutputTokens = 1e6;

class JsonObject;

class Scorer {
 public:
  // Without a model, requests are refused until a config line brings one.
  Scorer(std::optional<RankModel> model, const RankGoal& goal) : model_(model), goal_(goal) {}

  // What a line is answered, without a line end; empty for config and server lines. Throws
  // SpecError, without the line's number, and has changed nothing then.
  std::string answer(std::string_view line);

 private:
  struct Server {
    std::string id;
    RankServer state;
  };
  void take_config(const JsonObject& config);
  void take_server(const JsonObject& line);
  std::string answer_request(const JsonObject& line) const;
  std::vector<const Server*> candidates(const JsonObject& line) const;

  std::optional<RankModel> model_;
  RankGoal goal_;
  std::map<std::int64_t, Server> servers_;  // in the order in which they were first heard of
  std::map<std::string, std::int64_t> order_of_;
  std::int64_t next_ = 0;
};

// Answers every line of `in`, each at once; empty lines are skipped. Returns how many were bad.
std::size_t score_lines(Scorer* scorer, std::istream& in, std::ostream& out);

}  // namespace servelab

#endif  // SERVELAB_CLI_SCORE_H_
