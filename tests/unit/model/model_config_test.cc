// The model and hardware files under experiments/base, and what their loaders refuse.
#include "engine/model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "engine/backend/cost/hardware.h"
#include "engine/backend/cost/make_cost_model.h"
#include "engine/core/check.h"
#include "tests/support/shared_files.h"

namespace servelab {
namespace {

using test::base_path;
using test::device;
using test::model;
using test::roofline_devices;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

const std::vector<std::string> kAllTargets = {"q", "k", "v", "o", "gate", "up", "down"};

std::string error_of(const std::string& yaml, const std::string& kind) {
  const std::string path = std::filesystem::path(::testing::TempDir()) / ("servelab_" + kind);
  std::ofstream(path) << yaml;
  try {
    if (kind == "model") {
      load_model_config(path);
    } else {
      load_hardware_profile(path);
    }
  } catch (const SpecError& error) {
    return error.what();
  }
  return "";
}

TEST(ModelConfigTest, ParameterCountsAreThePublishedOnes) {
  EXPECT_EQ(model("llama-2-7b").parameters(), 6738415616);
  EXPECT_EQ(model("llama-2-13b").parameters(), 13015864320);
  EXPECT_EQ(model("llama-2-70b").parameters(), 68976648192);
  EXPECT_EQ(model("llama-3.1-8b").parameters(), 8030261248);
  EXPECT_EQ(model("qwen2.5-7b").parameters(), 7615616512);
}

TEST(ModelConfigTest, SmallModelsForRealRunsHaveTheirSizes) {
  EXPECT_EQ(model("tiny-15m").parameters(), 15191712);
  EXPECT_EQ(model("llama-134m").parameters(), 134105856);
  EXPECT_EQ(model("llama-1b").parameters(), 1100048384);
  EXPECT_EQ(model("llama-134m").weights, "random");
}

TEST(ModelConfigTest, RotarySettingsAreReadAndRecorded) {
  EXPECT_EQ(model("llama-2-7b").rope_scaling.type, "none");
  EXPECT_EQ(model("qwen2.5-7b").rope_theta, 1e6);
  EXPECT_EQ(model("qwen2.5-7b").rms_norm_eps, 1e-6);
  ModelConfig llama = model("llama-3.1-8b");
  EXPECT_EQ(llama.rope_scaling, (RopeScaling{"llama3", 8, 1, 4, 8192}));
  EXPECT_EQ(effective_params(&llama).find("rope_scaling.factor")->scalar, "8");
}

TEST(ModelConfigTest, SizesFollowFromTheShape) {
  EXPECT_EQ(model("llama-2-7b").kv_bytes_per_token(), 512 * kKiB);
  EXPECT_EQ(model("llama-3.1-8b").kv_bytes_per_token(), 128 * kKiB);
  // CaraServe: a rank 64 adapter of q, k and v takes about 100 MiB on Llama-2-7B.
  EXPECT_EQ(model("llama-2-7b").lora_bytes(64, {"q", "k", "v"}), 96 * kMiB);
  EXPECT_EQ(model("llama-3.1-8b").lora_parameters(8, kAllTargets), 20971520);
}

TEST(ModelConfigTest, MistakesAreReportedWithPlaceAndNearestName) {
  EXPECT_THAT(error_of("name: x\nlayer: 3\n", "model"),
              AllOf(HasSubstr(":2:"), HasSubstr("layers")));
  const std::string good =
      "name: x\nlayers: 1\nhidden: 8\nheads: 2\nkv_heads: 2\nhead_dim: 4\nffn: 8\nvocab: 9\n"
      "source: s\n";
  EXPECT_EQ(error_of(good, "model"), "");
  EXPECT_THAT(error_of(good + "rope_scaling: {type: yarn}\n", "model"),
              AllOf(HasSubstr(":10:16"), HasSubstr("llama3")));
  EXPECT_THAT(error_of(good + "rope_scaling: {type: linear, facto: 2}\n", "model"),
              AllOf(HasSubstr("rope_scaling.facto"), HasSubstr("rope_scaling.factor")));
  EXPECT_THAT(error_of(good + "rope_scaling: {factor: 2}\n", "model"), HasSubstr("'type'"));
  EXPECT_THAT(error_of(good + "rope_scaling: 2\n", "model"), HasSubstr("must be a map"));
  try {
    linear_shape(model("llama-2-7b"), "gates");
    FAIL() << "'gates' must be refused";
  } catch (const SpecError& error) {
    EXPECT_THAT(error.what(), HasSubstr("gate"));
  }
}

TEST(HardwareProfileTest, EveryProfileLoadsAndNamesItsSource) {
  for (const std::string& name : roofline_devices()) {
    HardwareProfile hw = device(name);
    EXPECT_GT(hw.source.size(), 20u) << name;
    EXPECT_NE(hw.effective().find("gemm"), nullptr);
  }
  EXPECT_THAT(roofline_devices(), IsSupersetOf({"rtx4090-24g", "l40s-48g", "a10-24g", "a100-80g",
                                                "h100-80g", "h200-141g", "h20-96g", "b200-180g"}));
}

TEST(HardwareProfileTest, MistakesAreReportedWithPlaceAndNearestName) {
  std::ifstream file(base_path("hardware", "a100-80g"));
  std::stringstream text;
  text << file.rdbuf();
  std::string yaml = text.str();
  const std::string good = "  wave_us:";
  yaml.replace(yaml.find(good), good.size(), "  waves_us:");
  EXPECT_THAT(error_of(yaml, "hardware"), AllOf(HasSubstr("waves_us"), HasSubstr("wave_us")));
  EXPECT_THAT(error_of("name: x\ngeneration: volta\n", "hardware"), HasSubstr("ampere"));
}

// A cost model from outside engine/: every step takes the same.
class TestCosts final : public CostModelKind {
 public:
  struct Constants {
    double step_us = 0;
    void fields(ParamFields& f) { f.add("step_us", &step_us, "any step").range(0, 1e6); }
  };
  struct Model final : CostModel {
    explicit Model(double us) : step_ns(static_cast<TimeNs>(us * 1000)) {}
    StepCost step(const BatchShape&, Exec, LoraKernel) const override { return {.dense = step_ns}; }
    TimeNs merge(int) const override { return 0; }
    TimeNs unmerge(int) const override { return 0; }
    TimeNs host_to_device(Bytes) const override { return 0; }
    TimeNs device_to_host(Bytes) const override { return 0; }
    TimeNs step_ns;
  };
  std::vector<ProfileSection> sections(HardwareProfile*) override {
    return {{"test_costs", &constants_}};
  }
  std::unique_ptr<CostModel> make(const ModelConfig&, const HardwareProfile&, int,
                                  const std::vector<std::string>&) const override {
    return std::make_unique<Model>(constants_.step_us);
  }

 private:
  Constants constants_;
};

const std::string kOwnCosts = R"(name: x
generation: cpu
cost_model: test-costs
memory_bytes: 1e9
peak_flops: 1e11
memory_bytes_per_s: 1e10
sm_count: 2
l2_bytes: 2e6
host_link_bytes_per_s: 1e9
host_link_fraction: 1
host_link_latency_us: 0
source: a test
)";

TEST(HardwareProfileTest, ACostModelBringsItsSection) {
  const std::string path = std::filesystem::path(::testing::TempDir()) / "servelab_own_costs";
  std::ofstream(path) << kOwnCosts << "test_costs: {step_us: 7}\n";
  HardwareProfile profile = load_hardware_profile(path);
  const auto costs = make_cost_model(model("llama-2-7b"), profile, 1, kAllTargets);
  EXPECT_EQ(costs->step({}, Exec::kMerged, LoraKernel::kSgmv).total(), 7000);
  HardwareProfile copy = profile;
  EXPECT_EQ(copy.effective().find("test_costs")->find("step_us")->scalar, "7");

  EXPECT_THAT(error_of(kOwnCosts, "hardware"),
              HasSubstr("hardware needs the section 'test_costs'"));
  EXPECT_THAT(error_of(kOwnCosts + "test_costs: {}\n", "hardware"),
              HasSubstr("hardware section 'test_costs' needs 'step_us' (any step)"));
  EXPECT_THAT(
      error_of(kOwnCosts + "test_costs: {step_us: 7}\nhost_lora: {}\n", "hardware"),
      HasSubstr("'host_lora' belongs to profiles with cost_model: fitted, placement, roofline"));
  EXPECT_THAT(error_of("name: x\ncost_model: tests-cost\n", "hardware"),
              AllOf(HasSubstr(":2:1: "), HasSubstr("did you mean 'test-costs'?"),
                    HasSubstr("known: fitted, placement, roofline")));
}

}  // namespace
}  // namespace servelab

SERVELAB_COST_MODEL("test-costs", TestCosts)
