// peft-2023 by its decision log: rounds, groups by adapter, static batches and their padding.
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

struct Asked {
  TimeNs at;
  std::uint32_t adapter;
  int prompt, output;
};

// The log's lines from the mode on, without their stamps.
std::vector<std::string> decisions(const std::vector<Asked>& asked, int max_batch,
                                   int max_batch_tokens) {
  test::WorkloadShape shape;
  shape.requests = static_cast<int>(asked.size());
  shape.adapters = 3;
  Workload workload = test::make_workload(shape, 1);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    Request& request = workload.requests[i];
    request.arrival = asked[i].at;
    request.adapter = AdapterId{asked[i].adapter};
    request.prompt_tokens = asked[i].prompt;
    request.output_tokens = request.output_limit_tokens = asked[i].output;
  }
  test::RunOptions options;
  options.technique = "peft-2023";
  options.engine = test::small_engine();
  options.engine.limits = {.max_batch = max_batch, .max_batch_tokens = max_batch_tokens};
  options.engine.adapter_slots = 1;
  options.record.decision_text = true;
  const RunRecord record = test::run(workload, options);
  EXPECT_EQ(test::violation(workload, record), "");
  std::istringstream log(record.decisions);
  std::vector<std::string> lines;
  for (std::string line; std::getline(log, line);) {
    lines.push_back(line.substr(line.find("sgmv") + 5));
  }
  return lines;
}

TEST(Peft2023, RoundsOfGroupsOfStaticPaddedBatches) {
  const std::vector<std::string> expected = {
      // The first round is whoever comes first.
      "load=0 run=0x10", "run=0",
      // All that came meanwhile: adapter 1 first, its two padded to 20 and to the end of the
      // longer.
      "evict=0 load=1 run=1x5+15,3x20", "run=1+15,3", "run=3",
      // The third of adapter 1 is another batch of its group, which makes nothing anew.
      "run=5x6",
      // Then adapter 0, whose group began with request 2.
      "evict=1 load=0 run=2x8,4x7+1",
      // Request 6 came during the round and makes the next: its adapter anew, though it is there.
      "evict=0 load=0 run=6x9"};
  EXPECT_EQ(decisions({{0, 0, 10, 2},
                       {10, 1, 5, 2},
                       {11, 0, 8, 1},
                       {12, 1, 20, 3},
                       {13, 0, 7, 1},
                       {14, 1, 6, 1},
                       {6'000'000, 0, 9, 1}},
                      2, 512),
            expected);
}

// Padded rows count against the engine's tokens: 10 and 10, then 100 by itself.
TEST(Peft2023, ABatchsPaddedRowsFitTheStep) {
  const std::vector<std::string> expected = {"load=0 run=0x4", "evict=0 load=1 run=1x10,2x10",
                                             "run=3x100"};
  EXPECT_EQ(decisions({{0, 0, 4, 1}, {10, 1, 10, 1}, {11, 1, 10, 1}, {12, 1, 100, 1}}, 8, 256),
            expected);
}

// Longer than a step: in chunks, which have no padding.
TEST(Peft2023, ALongPromptIsABatchByItself) {
  const std::vector<std::string> expected = {"load=0 run=0x128", "run=0x22", "run=0"};
  EXPECT_EQ(decisions({{0, 0, 150, 2}}, 8, 128), expected);
}

}  // namespace
}  // namespace servelab
