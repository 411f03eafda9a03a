#include "engine/backend/cost/fitted_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "engine/backend/cost/make_cost_model.h"
#include "engine/core/check.h"
#include "tests/support/error_of.h"

namespace servelab {
namespace {

FittedConstants constants() {
  FittedConstants c;
  c.model = "Toy";
  c.dtype = "bf16";
  c.machine = "a test";
  c.lora_targets = {"q", "v"};
  c.threads = 2;
  c.token_knots = {1, 4, 16};
  c.dense_us = {1000, 1300, 2500};
  c.sample_knots = {1, 8};
  c.logits_us = {200, 340};
  c.prefill_pair_ns = 3;
  c.prefill_token_us = 2;
  c.decode_key_ns = 50;
  c.decode_request_us = 5;
  c.of(LoraKernel::kBgmv) = {100, 1, 0.5, 10, 0.25};
  c.of(LoraKernel::kMbgmv) = {90, 1, 0.4, 10, 0.25};
  c.of(LoraKernel::kSgmv) = {80, 1, 0.3, 10, 0.25};
  c.of(LoraKernel::kEinsum) = {70, 1, 0.1, 10, 0.25};
  c.lora_prefill_token_us = 1;
  c.lora_prefill_rank_token_us = 0.1;
  c.lora_prefill_adapter_rank_us = 0.2;
  c.k0_us = 20;
  c.k1_us = 2;
  c.k2_us = 1;
  c.k3_us = 4;
  c.merge_us = 1000;
  c.merge_rank_us = 10;
  c.unmerge_us = 3;
  c.load_latency_us = 100;
  c.load_bytes_per_s = 1e9;
  c.disk_bytes_per_s = 1e8;
  c.swap_out_latency_us = 10;
  c.swap_out_bytes_per_s = 2e9;
  return c;
}

BatchShape decodes(int requests, int context, int adapters, int rank) {
  BatchShape batch;
  for (int i = 0; i < requests; ++i) {
    batch.add_slice(1, context, true);
    if (i < adapters) {
      batch.add_lora_rows(1, context, rank);
      batch.add_lora_adapter(rank);
    }
  }
  return batch;
}

TEST(FittedCostTest, InterpolatesAndExtrapolates) {
  const std::vector<double> x = {1, 4, 16}, y = {10, 40, 100};
  EXPECT_DOUBLE_EQ(interpolate(x, y, 0.5), 10);
  EXPECT_DOUBLE_EQ(interpolate(x, y, 2), 20);
  EXPECT_DOUBLE_EQ(interpolate(x, y, 4), 40);
  EXPECT_DOUBLE_EQ(interpolate(x, y, 10), 70);
  EXPECT_DOUBLE_EQ(interpolate(x, y, 20), 120);
}

TEST(FittedCostTest, PartsAddUp) {
  const FittedCostModel model(constants());
  BatchShape batch = decodes(4, 99, 2, 8);
  batch.waiting = 10;
  batch.served_adapters = 8;
  const StepCost cost = model.step(batch, Exec::kUnmerged, LoraKernel::kBgmv);
  EXPECT_EQ(cost.dense, 1'300'000 + 260'000);
  EXPECT_EQ(cost.attention, 4 * 100 * 50 + 4 * 5000);
  EXPECT_EQ(cost.lora, 100'000 + 2'000 + 16 * 500 + 2 * 10'000 + 16 * 250);
  EXPECT_EQ(cost.host, 20'000 + 4 * 2'000 + 10 * 1'000 + 10'000);
  EXPECT_EQ(model.step(batch, Exec::kMerged, LoraKernel::kBgmv).lora, 0);
  EXPECT_EQ(model.step(decodes(4, 99, 0, 8), Exec::kUnmerged, LoraKernel::kBgmv).lora, 0);
  EXPECT_EQ(model.merge(8), 1'080'000);
  EXPECT_EQ(model.unmerge(8), 3'000);
  EXPECT_EQ(model.host_to_device(1'000'000), 1'100'000);
  EXPECT_EQ(model.device_to_host(1'000'000), 510'000);
}

TEST(FittedCostTest, KernelsAreChargedByTheirOwnWork) {
  BatchShape batch = decodes(3, 10, 0, 0);
  for (const int rank : {8, 64, 16}) {
    batch.add_lora_rows(1, 10, rank);
    batch.add_lora_adapter(rank);
  }
  EXPECT_EQ(lora_work(LoraKernel::kBgmv, batch).measure, 3 * 64);
  EXPECT_EQ(lora_work(LoraKernel::kMbgmv, batch).measure, 88);
  EXPECT_EQ(lora_work(LoraKernel::kSgmv, batch).measure, 88);
  EXPECT_EQ(lora_work(LoraKernel::kEinsum, batch).measure, 3 * 3 * 64);
}

TEST(FittedCostTest, PrefillsAreChargedApartFromDecodes) {
  BatchShape batch = decodes(2, 10, 2, 8);
  batch.add_slice(100, 0, true);
  batch.add_lora_rows(100, 0, 16);
  batch.add_lora_adapter(16);
  const LoraWork work = lora_work(LoraKernel::kSgmv, batch);
  EXPECT_EQ(work.rows, 2);
  EXPECT_EQ(work.measure, 16);
  EXPECT_EQ(work.prefill_rows, 100);
  EXPECT_EQ(work.prefill_rank_rows, 1600);
  EXPECT_EQ(work.prefill_adapter_ranks, 16);
}

// Padding: positions of a prefill, keys of a decode.
TEST(FittedCostTest, APaddedRowCostsWhatALongerOneDoes) {
  BatchShape padded, longer;
  padded.add_slice(70, 0, true, 30);
  longer.add_slice(100, 0, true);
  padded.add_slice(1, 70, true, 30);
  longer.add_slice(1, 100, true);
  EXPECT_EQ(padded.tokens, longer.tokens);
  EXPECT_EQ(padded.sampled, longer.sampled);
  EXPECT_EQ(padded.prefill_pairs, longer.prefill_pairs);
  const FittedCostModel model(constants());
  const auto time = [&](const BatchShape& batch) {
    return model.step(batch, Exec::kUnmerged, LoraKernel::kSgmv).total();
  };
  EXPECT_EQ(time(padded), time(longer));
}

// What an engine takes for a load and for its start is beside what a profile measured.
TEST(FittedCostTest, AnEnginesOwnLoadsAndStart) {
  EngineCosts engine;
  engine.load_us = 298'000;
  engine.first_step_us = 2e6;
  const FittedCostModel plain(constants()), slow(constants(), engine);
  EXPECT_EQ(plain.first_step(), 0);
  EXPECT_EQ(slow.first_step(), from_seconds(2));
  EXPECT_EQ(slow.load(LoadPath::kPinned, 1 << 20) - plain.load(LoadPath::kPinned, 1 << 20),
            from_seconds(0.298));
  EXPECT_EQ(slow.device_to_host(1 << 20), plain.device_to_host(1 << 20));
}

TEST(FittedCostTest, MoreWorkIsNeverCheaper) {
  const FittedCostModel model(constants());
  for (const LoraKernel kernel :
       {LoraKernel::kBgmv, LoraKernel::kMbgmv, LoraKernel::kSgmv, LoraKernel::kEinsum}) {
    TimeNs before = 0;
    for (int requests = 1; requests < 64; ++requests) {
      const TimeNs time =
          model.step(decodes(requests, 50, requests, 16), Exec::kUnmerged, kernel).total();
      EXPECT_GT(time, before);
      before = time;
    }
  }
}

TEST(FittedCostTest, PlacementModelIsEquationOne) {
  PlacementConstants p;
  p.k1_us = 1;
  p.k2_us = 2;
  p.k3_us = 3;
  p.k4_us = 100;
  p.k5_us = 1000;
  p.k6 = 0.1;
  p.k7 = 1.5;
  p.load_ranks = {8, 16};
  p.load_us = {500, 900};
  const PlacementCostModel model(p, constants(), 1000);
  BatchShape batch = decodes(4, 99, 2, 8);
  batch.waiting = 10;
  batch.served_adapters = 4;
  const StepCost cost = model.step(batch, Exec::kUnmerged, LoraKernel::kSgmv);
  EXPECT_EQ(cost.dense + cost.lora, 1'400'000 * 17 / 10);
  EXPECT_EQ(cost.host, 4'000 + 20'000 + 15'000);
  EXPECT_EQ(cost.attention, 0);
  BatchShape prefill;
  prefill.add_slice(500, 0, true);
  EXPECT_EQ(model.step(prefill, Exec::kUnmerged, LoraKernel::kSgmv).total(), 1'651'000);
  EXPECT_EQ(model.host_to_device(8'000), 500'000);
  EXPECT_EQ(model.host_to_device(12'000), 700'000);
  EXPECT_EQ(model.device_to_host(1'000'000), 510'000);
}

// --- profiles ---

const char* const kProfile = R"(name: test-cpu
generation: cpu
cost_model: fitted
memory_bytes: 1e9
peak_flops: 1e11
memory_bytes_per_s: 1e10
sm_count: 2
l2_bytes: 2e6
host_link_bytes_per_s: 1e9
host_link_fraction: 1
host_link_latency_us: 0
source: "a test"
)";

class FittedProfileTest : public ::testing::Test {
 protected:
  std::string save(const std::string& name, const std::string& text) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << text;
    return path;
  }
  static std::string section(const ConfigNode& node) {
    std::string text;
    for (const auto& [key, value] : node.members) {
      text += "  " + key + ": " + canonical_json(value) + "\n";
    }
    return text;
  }
  std::string fitted() {
    FittedConstants c = constants();
    return "fitted:\n" + section(effective_params(&c));
  }
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/fitted_profile";
    std::filesystem::create_directories(folder_);
  }
  std::string folder_;
};

TEST_F(FittedProfileTest, LoadsAndRecordsItsSections) {
  HardwareProfile profile = load_hardware_profile(save("a.yaml", kProfile + fitted()));
  EXPECT_EQ(profile.cost_model, "fitted");
  EXPECT_EQ(profile.fitted.dense_us, constants().dense_us);
  const ConfigNode effective = profile.effective();
  ASSERT_NE(effective.find("fitted"), nullptr);
  EXPECT_EQ(effective.find("fitted")->find("k2_us")->scalar, "1");
  EXPECT_EQ(effective.find("gemm"), nullptr);
  EXPECT_EQ(effective.find("cost_model")->scalar, "fitted");
}

TEST_F(FittedProfileTest, IsRefusedForAnotherModelOrOtherTargets) {
  const HardwareProfile profile = load_hardware_profile(save("a.yaml", kProfile + fitted()));
  ModelConfig model;
  model.name = "Toy";
  EXPECT_NE(make_cost_model(model, profile, 1, {"v", "q"}), nullptr);
  EXPECT_THAT(test::error_of([&] { make_cost_model(model, profile, 1, {"q"}); }),
              ::testing::HasSubstr("calibrated for LoRA targets q,v, not for q;"));
  EXPECT_THAT(test::error_of([&] {
                make_cost_model(model, profile, 2, {"q", "v"});
              }),
              ::testing::HasSubstr("tensor_parallel must be 1"));
  model.name = "Other";
  EXPECT_THAT(test::error_of([&] {
                make_cost_model(model, profile, 1, {"q", "v"});
              }),
              ::testing::HasSubstr("calibrated for model 'Toy', not for 'Other'"));
}

TEST_F(FittedProfileTest, MissingSectionsAndBadTablesAreNamed) {
  EXPECT_THAT(test::error_of([&] { load_hardware_profile(save("b.yaml", kProfile)); }),
              ::testing::HasSubstr("hardware needs the section 'fitted'"));
  FittedConstants falling = constants();
  falling.dense_us = {3, 2, 1};
  const std::string text = kProfile + ("fitted:\n" + section(effective_params(&falling)));
  EXPECT_THAT(test::error_of([&] { load_hardware_profile(save("c.yaml", text)); }),
              ::testing::HasSubstr("values that never fall"));
}

TEST_F(FittedProfileTest, APlacementTwinExtendsTheProfile) {
  PlacementConstants p;
  p.k5_us = 1000;
  p.k7 = 1.5;
  p.load_ranks = {8};
  p.load_us = {500};
  save("d.yaml", kProfile + fitted() + "placement:\n" + section(effective_params(&p)));
  const std::string twin = "extends: d\nname: d-placement\ncost_model: placement\n";
  HardwareProfile profile = load_hardware_profile(save("e.yaml", twin));
  EXPECT_EQ(profile.cost_model, "placement");
  EXPECT_NE(profile.effective().find("placement"), nullptr);
}

}  // namespace
}  // namespace servelab
