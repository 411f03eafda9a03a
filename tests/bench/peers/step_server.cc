// Steps of the CPU engine, as somebody asks for them: what compare.py times beside
// another engine. A line of stdin is a step, "BATCH CONTEXT TOKENS ADAPTERS" (sequences, tokens
// that each has before, tokens of each in the step, distinct adapters); its answer is a line with
// the seconds of each of its repeats, after one that is not counted.
//
//   servelab_step_server MODEL_FOLDER THREADS ADAPTERS RANK
//
// Loads ADAPTERS random ones of RANK on q, k, v and o first. Exits 2 with a line for a step that
// there is no room for.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>

#include "engine/backend/device/accelerator.h"
#include "engine/core/check.h"
#include "engine/model/hf_model.h"
#include "engine/run/real_run.h"
#include "tests/bench/steps.h"

namespace servelab {
namespace {

constexpr int kRepeats = 4;
constexpr int kSequences = 64;
constexpr int kStepTokens = 2048;
constexpr int kKvTokens = 16384;

StepLoad open(const std::string& folder, int threads, int adapters, int rank) {
  const ModelConfig model = load_hf_config(folder);
  DevicePlan plan;
  plan.type = element_type("cpu", {}, model);
  plan.limits.block_tokens = kStepBlockTokens;
  plan.limits.kv_blocks = kKvTokens / kStepBlockTokens;
  plan.limits.max_batch = kSequences;
  plan.limits.max_batch_tokens = kStepTokens;
  plan.adapters = adapters;
  plan.widest_rank = rank;
  const auto engine = find_accelerator("cpu");
  engine->share_host(0, {.threads = threads}, &plan);
  std::fprintf(stderr, "servelab: %s, %d threads\n", engine->kernels_name(plan.type).c_str(),
               threads);
  return {engine->make(model, *open_weights(model), plan), adapters, rank};
}

StepCase parse(const std::string& line, int adapters) {
  StepCase c = {};
  std::istringstream fields(line);
  if (!(fields >> c.batch >> c.context >> c.tokens >> c.adapters) || c.batch < 1 || c.tokens < 1 ||
      c.context < 0 || c.adapters < 0 || c.adapters > adapters || c.batch > kSequences ||
      c.tokens > kStepTokens / c.batch || c.context > kKvTokens ||
      blocks_of(c) > kKvTokens / kStepBlockTokens) {
    throw SpecError("stdin: '" + line + "': a step is BATCH CONTEXT TOKENS ADAPTERS, with room");
  }
  return c;
}

void serve(StepLoad load, int adapters) {
  for (std::string line; std::getline(std::cin, line);) {
    const StepCase c = parse(line, adapters);
    load.run(c);
    for (int i = 0; i < kRepeats; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      load.run(c);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      std::printf("%s%.9f", i == 0 ? "" : " ", took.count());
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace servelab

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s MODEL_FOLDER THREADS ADAPTERS RANK\n", argv[0]);
    return 2;
  }
  try {
    const int adapters = std::atoi(argv[3]);
    servelab::serve(servelab::open(argv[1], std::atoi(argv[2]), adapters, std::atoi(argv[4])),
                    adapters);
    return 0;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "%s\n", problem.what());
    return 2;
  }
}
