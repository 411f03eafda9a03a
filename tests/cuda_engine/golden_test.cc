// The CUDA engine against transformers + PEFT (tests/golden/models): f32 fixtures whose weights it
// holds in 16 bits, so within what that rounding does to them. Adapters where the kernels take the
// fixture's shapes.
#include "engine/core/config_node.h"
#include "tests/cuda_engine/engine_testing.h"
#include "tests/unit/model/weights_testing.h"

namespace servelab {
namespace {

using namespace test;  // NOLINT: the tests' own words

// Measured with naive kernels: 0.003 in f16, 0.016 in bf16.
double golden_tolerance(DType type) { return type == DType::kBf16 ? 0.05 : 0.008; }

class CudaGolden : public ::testing::TestWithParam<std::tuple<const char*, DType>> {
 protected:
  CudaGolden()
      : folder_(golden_folder(std::get<0>(GetParam()))),
        model_(load_hf_config(folder_ + "/model")),
        logits_(TensorFiles::open_file(folder_ + "/expected.safetensors")),
        expected_(parse_yaml_file(folder_ + "/expected.json")) {}
  void SetUp() override {
    const std::string reason = no_device();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }

  DevicePlan plan(int adapters) const {
    DevicePlan plan = small_plan(std::get<1>(GetParam()));
    plan.limits.kv_blocks = 160;
    plan.adapters = adapters;
    plan.merges = adapters > 0;
    if (adapters == 0) plan.targets.clear();
    return plan;
  }
  std::vector<std::vector<std::int32_t>> prompts() const {
    std::vector<std::vector<std::int32_t>> prompts;
    for (const ConfigNode& prompt : expected_.find("prompts")->items) {
      std::vector<std::int32_t>& ids = prompts.emplace_back();
      for (const ConfigNode& item : prompt.items) ids.push_back(std::stoi(item.scalar));
    }
    return prompts;
  }
  std::vector<float> expected(const std::string& name, std::size_t prompt) const {
    const Tensor tensor =
        logits_.take(name + "." + std::to_string(prompt) + ".last", 0, model_.vocab);
    std::vector<float> row;
    for (int i = 0; i < model_.vocab; ++i) {
      row.push_back(static_cast<float>(value_at(tensor, static_cast<std::size_t>(i))));
    }
    return row;
  }
  std::vector<std::string> cases() const {
    std::vector<std::string> names;
    for (const ConfigMember& entry : expected_.find("cases")->members) names.push_back(entry.key);
    return names;
  }
  double allowed() const { return golden_tolerance(std::get<1>(GetParam())); }

  std::string folder_;
  ModelConfig model_;
  TensorFiles logits_;
  ConfigNode expected_;
};

TEST_P(CudaGolden, TheBaseModel) {
  const auto weights = load_hf_weights(folder_ + "/model", model_);
  cuda::CudaDevice device(model_, *weights, plan(0));
  double worst = 0;
  const auto all = prompts();
  for (std::size_t p = 0; p < all.size(); ++p) {
    worst = std::max(worst,
                     difference(prefill(&device, all[p], 5, blocks(0, 30)), expected("base", p)));
  }
  EXPECT_LT(worst, allowed());
  std::printf("  %s: logits differ by at most %.1e of the largest\n", std::get<0>(GetParam()),
              worst);
}

TEST_P(CudaGolden, AdaptersUnmergedMergedAndInAMixedBatch) {
  const auto weights = load_hf_weights(folder_ + "/model", model_);
  const std::vector<std::string> names = cases();
  cuda::CudaDevice device(model_, *weights, plan(static_cast<int>(names.size())));
  std::vector<AdapterId> adapters;
  for (const std::string& name : names) {
    adapters.push_back(name == "base" ? kBaseModel : nth(adapters.size()));
    if (name == "base") continue;
    device.load({adapters.back(), 64}, load_peft_adapter(folder_ + "/" + name, model_));
  }
  double worst = 0;
  const auto all = prompts();
  const auto vocab = static_cast<std::ptrdiff_t>(model_.vocab);
  for (std::size_t p = 0; p < all.size(); ++p) {
    std::vector<Sequence> batch;
    for (std::size_t i = 0; i < names.size(); ++i) {
      batch.push_back(sequence(all[p], 0, blocks(static_cast<int>(i) * 30, 30), adapters[i]));
    }
    const auto mixed = run(&device, batch);
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto wanted = expected(names[i], p);
      const auto row = mixed.begin() + static_cast<std::ptrdiff_t>(i) * vocab;
      worst = std::max(worst, difference({row, row + vocab}, wanted));
      if (adapters[i] == kBaseModel) continue;
      const auto alone = prefill(&device, all[p], 7, blocks(0, 30), adapters[i]);
      worst = std::max(worst, difference(alone, wanted));
      merge(&device, adapters[i]);
      const auto merged = prefill_merged(&device, all[p], blocks(0, 30));
      worst = std::max(worst, difference(merged, wanted));
      unmerge(&device);
    }
  }
  EXPECT_LT(worst, allowed());
  std::printf("  %s: logits differ by at most %.1e of the largest\n", std::get<0>(GetParam()),
              worst);
}

// No shape is too odd for the host: these adapters need no memory of the device.
TEST_P(CudaGolden, AdaptersOnTheHostInAMixedBatch) {
  const auto weights = load_hf_weights(folder_ + "/model", model_);
  const std::vector<std::string> names = cases();
  DevicePlan plan = this->plan(0);
  plan.targets = small_plan(plan.type).targets;
  plan.lora.workers = 2;
  cuda::CudaDevice device(model_, *weights, plan);
  std::vector<AdapterId> adapters;
  for (const std::string& name : names) {
    adapters.push_back(name == "base" ? kBaseModel : nth(adapters.size()));
    if (name == "base") continue;
    device.hold({adapters.back()}, load_peft_adapter(folder_ + "/" + name, model_));
  }
  double worst = 0;
  const auto all = prompts();
  const auto vocab = static_cast<std::ptrdiff_t>(model_.vocab);
  for (std::size_t p = 0; p < all.size(); ++p) {
    std::vector<Sequence> batch;
    for (std::size_t i = 0; i < names.size(); ++i) {
      batch.push_back(
          sequence(all[p], 0, blocks(static_cast<int>(i) * 30, 30), adapters[i], LoraSite::kHost));
    }
    const auto mixed = run(&device, batch);
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto row = mixed.begin() + static_cast<std::ptrdiff_t>(i) * vocab;
      worst = std::max(worst, difference({row, row + vocab}, expected(names[i], p)));
    }
  }
  EXPECT_LT(worst, allowed());
  std::printf("  %s: logits differ by at most %.1e of the largest\n", std::get<0>(GetParam()),
              worst);
}

INSTANTIATE_TEST_SUITE_P(Families, CudaGolden,
                         ::testing::Combine(::testing::Values("llama", "mistral", "qwen2"),
                                            ::testing::Values(DType::kBf16, DType::kF16)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  kernels::name(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace servelab
