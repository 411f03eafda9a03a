#include "engine/cli/score_cli.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <fstream>
#include <iostream>
#include <optional>

#include "baselines/shared/kernel_param.h"
#include "baselines/shared/perf_model.h"
#include "engine/cli/score.h"
#include "engine/core/check.h"

namespace servelab {

CLI::App* declare_score(CLI::App* app, ScoreArguments* arguments) {
  ScoreArguments& a = *arguments;
  CLI::App* command = app->add_subcommand(
      "score",
      "CaraServe's routing for other routers: servers and requests in, choices out, as "
      "JSON lines (engine/cli/score.h)");
  command->allow_extras();
  command->add_option("FILE", a.input, "the lines; -: stdin")->capture_default_str();
  command->add_option("--model", a.model, "what perf-model fit wrote; default: a config line");
  command->add_option("--kernel", a.kernel, "the servers' LoRA kernel, in the model")
      ->check(CLI::IsMember(lora_kernel_names()))
      ->capture_default_str();
  command->add_option("--slo-ms", a.goal.slo_ms, "of a decoding step; default: no penalty")
      ->check(CLI::Range(kLeastSloMs, kMostMs));
  command->add_option("--penalty-ms", a.goal.penalty_ms, "of a server that misses the SLO")
      ->check(CLI::Range(0.0, kMostPenaltyMs))
      ->capture_default_str();
  command->add_option("--output-tokens", a.goal.output_tokens, "of the average response")
      ->check(CLI::Range(1.0, kMostOutputTokens))
      ->capture_default_str();
  command->add_flag("--idle-is-free", a.idle_is_free, "a batch of no requests takes nothing");
  return command;
}

int score_command(const ScoreArguments& arguments) {
  const RankGoal& goal = arguments.goal;
  if (std::isnan(goal.slo_ms + goal.penalty_ms + goal.output_tokens)) {  // passes a CLI::Range
    throw SpecError("--slo-ms, --penalty-ms and --output-tokens must be numbers");
  }
  std::optional<RankModel> model;
  if (!arguments.model.empty()) {
    model = rank_model(arguments.model, arguments.kernel, true);
    model->idle_is_free = arguments.idle_is_free;
  } else if (arguments.idle_is_free) {
    throw SpecError("--idle-is-free is of --model; config lines say it themselves");
  }
  std::ifstream file;
  if (arguments.input != "-") file.open(arguments.input);
  std::istream& in = arguments.input == "-" ? std::cin : file;
  Scorer scorer(model, goal);
  const std::size_t bad = score_lines(&scorer, in, std::cout);
  if (!in.eof()) throw SpecError(arguments.input + ": cannot be read");
  if (bad == 0) return 0;
  fmt::print(stderr, "servelab: error: {} bad line{}; their answers say why\n", bad,
             bad == 1 ? "" : "s");
  return 1;
}

}  // namespace servelab
