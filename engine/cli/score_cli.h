// servelab score: the lines of engine/cli/score.h, from stdin or a file.
#ifndef SERVELAB_CLI_SCORE_CLI_H_
#define SERVELAB_CLI_SCORE_CLI_H_

#include <string>

#include "baselines/shared/rank_cost.h"

namespace CLI {
class App;
}

namespace servelab {

struct ScoreArguments {
  std::string input = "-";  // stdin
  std::string model;        // a file of perf-model fit; empty: a config line brings the lines
  std::string kernel = "mbgmv";
  RankGoal goal{.output_tokens = 60, .slo_ms = 0, .penalty_ms = 1e3};
  bool idle_is_free = false;
};

// Adds the command; it fills `arguments`, which outlive the parsing.
CLI::App* declare_score(CLI::App* app, ScoreArguments* arguments);

// Returns the exit code: 0, or 1 when a line was bad. Throws SpecError for bad options.
int score_command(const ScoreArguments& arguments);

}  // namespace servelab

#endif  // SERVELAB_CLI_SCORE_CLI_H_
