// What LoRA on the host adds to a step: a worked example, what hides behind the device's work, and
// profiles that do not say.
#include "engine/backend/cost/host_lora_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "engine/backend/cost/cost_model.h"
#include "engine/backend/cost/op_cost.h"
#include "engine/core/check.h"
#include "tests/support/error_of.h"
#include "tests/support/program.h"
#include "tests/support/shared_files.h"

namespace servelab {
namespace {

using test::base_path;

using ::testing::HasSubstr;

HardwareProfile a10() { return load_hardware_profile(base_path("hardware", "a10-24g")); }
RooflineCostModel seven_b(const HardwareProfile& hardware,
                          const std::vector<std::string>& targets = {"q", "k", "v"},
                          int tensor_parallel = 1) {
  return RooflineCostModel(load_model_config(base_path("model", "llama-2-7b")), hardware,
                           tensor_parallel, targets);
}

// One prompt whose adapter the host computes.
BatchShape prompt(std::int64_t tokens, int rank, std::int64_t requests = 1) {
  BatchShape batch;
  for (std::int64_t i = 0; i < requests; ++i) {
    batch.add_slice(tokens, 0, true);
    batch.add_host_rows(tokens, rank);
  }
  batch.add_host_adapter(rank);
  return batch;
}

// Round numbers: a link of 1 GB/s and 10 us, cores of 1 GFLOP/s that read 1 GB/s.
HardwareProfile round_numbers() {
  HardwareProfile hw = a10();
  hw.host_link_bytes_per_s = 1e9;
  hw.host_link_fraction = 1;
  hw.host_link_latency_us = 10;
  hw.host_lora = {.cores = 24,
                  .chunk_rows = 8,
                  .core_flops = 1e9,
                  .core_bytes_per_s = 1e9,
                  .signal_us = 2,
                  .sync_us = 30};
  hw.copies = {.pageable_to_device_bytes_per_s = 1e8,
               .pageable_to_host_bytes_per_s = 5e8,
               .call_us = 5,
               .cache_release_us = 70};
  return hw;
}

// q, k, v of a model of width 1000: x has 1000 columns, 3000 come back.
constexpr HostVisit kVisit = {.targets = 3, .in = 1000, .out = 3000, .width = 2000};

// 16 rows at rank 10 are two chunks of 8 on each of three targets: six cores, one round.
//   a core  2 B * 10 * 2000 / 1 GB/s = 40 us of weights, 2 * 8 * 10 * 2000 / 1 GFLOP/s = 320 us
//   there   10 + 16 * 1000 * 2 B / 1 GB/s = 42 us;  back  10 + 16 * 3000 * 2 B / 1 GB/s = 106 us
//   fused   42 + 2 + 360 + 2 + 106 = 512 us, of which the device's GEMM hides 364
TEST(HostLoraCost, WorkedExample) {
  const HardwareProfile hw = round_numbers();
  EXPECT_DOUBLE_EQ(host_core_us(hw.host_lora, 8, 10, 2000), 360);
  const auto added = [&](HostCopy copy, double device_us) {
    return host_visit(hw, prompt(16, 10), copy, 1, kVisit, device_us).added;
  };
  EXPECT_DOUBLE_EQ(added(HostCopy::kFused, 0), 512);
  EXPECT_DOUBLE_EQ(added(HostCopy::kFused, 300), 212);
  // Copies are in the step's own stream: nothing hides them.
  EXPECT_DOUBLE_EQ(added(HostCopy::kFused, 600), 42 + 106);
  EXPECT_DOUBLE_EQ(added(HostCopy::kSynced, 0), 512 + 30);
  EXPECT_DOUBLE_EQ(added(HostCopy::kSynced, 600), 42 + 30 + 106);
  // Pageable: 5 + 16 * 1000 * 2 B / 0.5 GB/s = 69 us there.
  EXPECT_DOUBLE_EQ(added(HostCopy::kPageable, 600), 69 + 30 + 106);
  EXPECT_DOUBLE_EQ(host_visit(hw, prompt(16, 10), HostCopy::kPageable, 1, kVisit, 600).back, 106);
}

// ceil(tokens / c) cores for each target (CaraServe 4.2): time grows when they run out.
TEST(HostLoraCost, CoresTakeChunksInRounds) {
  HardwareProfile hw = round_numbers();
  const auto compute = [&](const BatchShape& batch, int devices) {
    BatchShape none = batch;
    none.host_max_rank = 0;
    return host_visit(hw, batch, HostCopy::kFused, devices, kVisit, 0).added -
           host_visit(hw, none, HostCopy::kFused, devices, kVisit, 0).added;
  };
  EXPECT_NEAR(compute(prompt(3, 10), 1), 40 + 3 * 40, 1e-9);     // a chunk that is not full
  EXPECT_NEAR(compute(prompt(64, 10), 1), 360, 1e-9);            // 24 tasks on 24 cores
  EXPECT_NEAR(compute(prompt(65, 10), 1), 2 * 360, 1e-9);        // 27
  EXPECT_NEAR(compute(prompt(8, 10, 8), 1), 360, 1e-9);          // eight prompts of a chunk each
  EXPECT_NEAR(compute(prompt(64, 10), 2), 2 * 360, 1e-9);        // two devices share the cores
  EXPECT_NEAR(compute(prompt(1, 10, 4), 1), 40 + 1 * 40, 1e-9);  // decodes
  hw.host_lora.cores = 1;
  EXPECT_NEAR(compute(prompt(64, 10), 1), 24 * 360, 1e-9);
}

TEST(HostLoraCost, AStepAddsUpItsLayers) {
  const HardwareProfile hw = a10();
  const RooflineCostModel cost = seven_b(hw);
  const BatchShape batch = prompt(64, 64);
  // 57.9 us of weights, 164.8 of products and 2 of signals lie beside the GEMM of q, k and v; 30.8
  // us there and 72.4 back do not.
  const double device = gemm_us(hw, 64, 3 * 4096, 4096);
  EXPECT_NEAR(device, 230, 10);
  const HostLoraCost fused = cost.host_lora(batch, HostCopy::kFused);
  EXPECT_NEAR(static_cast<double>(fused.added), 32 * (30.8 + 72.4) * 1e3, 32 * 100);
  EXPECT_NEAR(static_cast<double>(fused.results), 32 * 72.4e3, 32 * 100);
  const HostLoraCost synced = cost.host_lora(batch, HostCopy::kSynced);
  EXPECT_NEAR(static_cast<double>(synced.added - fused.added), 32 * 20e3, 2);
  EXPECT_EQ(synced.results, fused.results);
  EXPECT_EQ(cost.host_lora(BatchShape{}, HostCopy::kFused).added, 0);
}

// Rows of other requests lengthen the device's GEMM, and more of the host's work hides behind it.
TEST(HostLoraCost, OtherRowsOfTheStepHideIt) {
  HardwareProfile hw = a10();
  hw.host_lora.core_flops /= 2;
  const RooflineCostModel cost = seven_b(hw);
  BatchShape batch = prompt(64, 64);
  const HostLoraCost alone = cost.host_lora(batch, HostCopy::kFused);
  batch.add_slice(1024, 0, true);
  const HostLoraCost beside = cost.host_lora(batch, HostCopy::kFused);
  EXPECT_LT(beside.added, alone.added);
  EXPECT_EQ(beside.results, alone.results);
}

TEST(HostLoraCost, EveryInputOfALayerIsAVisit) {
  const RooflineCostModel cost = seven_b(a10());
  const RooflineCostModel one = seven_b(a10(), {"q"}), two = seven_b(a10(), {"q", "o"}),
                          all = seven_b(a10(), {"q", "k", "v", "o", "gate", "up", "down"});
  const BatchShape batch = prompt(128, 64);
  const auto of = [&](const RooflineCostModel& model) {
    return model.host_lora(batch, HostCopy::kSynced).added;
  };
  EXPECT_GT(of(two), of(one) + 32 * 20'000);
  EXPECT_GT(of(all), of(two) + 2 * 32 * 20'000);
}

TEST(HostLoraCost, GrowsWithRankAndRows) {
  const RooflineCostModel cost = seven_b(a10());
  TimeNs last = -1;
  for (const int rank : {8, 16, 32, 64, 128}) {
    const TimeNs now = cost.host_lora(prompt(256, rank), HostCopy::kFused).added;
    EXPECT_GE(now, last);
    last = now;
  }
  EXPECT_GT(last, 0);
  EXPECT_GT(cost.host_lora(prompt(1024, 64), HostCopy::kFused).added,
            cost.host_lora(prompt(64, 64), HostCopy::kFused).added);
}

TEST(HostLoraCost, AProfileThatDoesNotSayIsRefused) {
  const HardwareProfile silent = load_hardware_profile(base_path("hardware", "a800-80g"));
  const RooflineCostModel cost = seven_b(silent);
  EXPECT_THAT(cost.no_host_lora(), HasSubstr("it needs the section 'host_lora'"));
  EXPECT_THROW(cost.host_lora(prompt(8, 8), HostCopy::kFused), InvariantError);
  EXPECT_EQ(seven_b(a10()).no_host_lora(), nullptr);
}

TEST(HostLoraCost, EffectiveSettingsHaveTheSectionWhereTheProfileHas) {
  HardwareProfile with = a10(), without = load_hardware_profile(base_path("hardware", "a800-80g"));
  const ConfigNode node = with.effective();
  ASSERT_NE(node.find("host_lora"), nullptr);
  EXPECT_EQ(node.find("host_lora")->find("chunk_rows")->scalar, "8");
  EXPECT_EQ(without.effective().find("host_lora"), nullptr);
}

TEST(HostLoraCost, HalfASectionAndOneInTheWrongPlaceAreErrors) {
  const test::TemporaryFolder folder;
  std::ifstream file(base_path("hardware", "a100-80g"));
  std::ostringstream text;
  text << file.rdbuf();
  const std::string whole = text.str();
  const auto error = [&](const std::string& from, const std::string& to) {
    std::string changed = whole;
    const std::size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    changed.replace(at, from.size(), to);
    const std::string path = folder.file("hw.yaml", changed);
    return test::error_of([&] { load_hardware_profile(path); });
  };
  EXPECT_THAT(error("  signal_us: 1\n", ""),
              HasSubstr("hardware section 'host_lora' needs 'signal_us'"));
  EXPECT_THAT(error("  signal_us: 1\n", "  signals_us: 1\n"), HasSubstr("'signal_us'"));
  EXPECT_THAT(error("cores: 123", "cores: 0"), HasSubstr("cores"));
  EXPECT_THAT(error("host_lora:", "host_lara:"), HasSubstr("did you mean 'host_lora'?"));
}

}  // namespace
}  // namespace servelab
