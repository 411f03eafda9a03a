// PEFT folders: written and read back, and every kind of damage refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "engine/model/lora_weights.h"
#include "tests/support/error_of.h"
#include "tests/unit/model/weights_testing.h"

namespace servelab {
namespace {

using test::bytes_of;
using test::error_of;
using test::TemporaryFolder;
using test::tiny_model;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kPrefix = "base_model.model.model.layers.";

void expect_equal(const LoraWeights& a, const LoraWeights& b) {
  EXPECT_EQ(a.rank(), b.rank());
  for (int layer = 0; layer < a.layers(); ++layer) {
    for (int i = 0; i < kLinearLayers; ++i) {
      const LoraMatrices* x = a.find(layer, static_cast<LinearLayer>(i));
      const LoraMatrices* y = b.find(layer, static_cast<LinearLayer>(i));
      ASSERT_EQ(x == nullptr, y == nullptr);
      if (x == nullptr) continue;
      EXPECT_EQ(x->scale, y->scale);
      EXPECT_EQ(x->rank, y->rank);
      EXPECT_EQ(bytes_of(x->a), bytes_of(y->a));
      EXPECT_EQ(bytes_of(x->b), bytes_of(y->b));
    }
  }
}

TEST(PeftAdapterTest, SavedAdaptersAreReadBack) {
  const TemporaryFolder folder;
  const ModelConfig model = tiny_model();
  const auto adapter = random_adapter(model, "a", 4, {"q", "v", "down"}, 1);
  save_peft_adapter(*adapter, model, folder / "new/a");
  const auto read = load_peft_adapter(folder / "new/a", model);
  EXPECT_EQ(read->name(), "a");
  expect_equal(*read, *adapter);
  EXPECT_THAT(error_of([&] { save_peft_adapter(*adapter, model, folder / "new/a"); }),
              HasSubstr("does not exist yet"));
  for (const auto& entry : std::filesystem::directory_iterator(folder / "new")) {
    EXPECT_EQ(entry.path().filename(), "a");  // nothing temporary is left
  }
}

TEST(PeftAdapterTest, RanksAndScalesOfSingleLayersSurvive) {
  const TemporaryFolder folder;
  ModelConfig model = tiny_model();
  model.layers = 12;
  const auto small = random_adapter(model, "a", 2, {"q", "up"}, 1);
  const auto large = random_adapter(model, "b", 6, {"q", "o"}, 2);
  LoraWeights mixed("mixed", model.layers);
  for (int layer = 0; layer < model.layers; ++layer) {
    LoraMatrices q = *(layer == 1 ? large : small)->find(layer, LinearLayer::kQ);
    q.scale = layer == 11 ? 0.3f : 1.7f;
    mixed.set(layer, LinearLayer::kQ, q);
  }
  mixed.set(3, LinearLayer::kO, *large->find(3, LinearLayer::kO));
  save_peft_adapter(mixed, model, folder / "mixed/");
  expect_equal(*load_peft_adapter(folder / "mixed", model), mixed);
}

// An adapter's files with one change.
class DamagedAdapter {
 public:
  DamagedAdapter() {
    const auto adapter = random_adapter(model_, "a", 4, {"q", "v"}, 1);
    for (int layer = 0; layer < model_.layers; ++layer) {
      for (const auto which : {LinearLayer::kQ, LinearLayer::kV}) {
        const std::string module = "base_model.model." + hf_module(layer, which);
        tensors.emplace_back(module + ".lora_A.weight", adapter->find(layer, which)->a);
        tensors.emplace_back(module + ".lora_B.weight", adapter->find(layer, which)->b);
      }
    }
  }
  std::string error() { return error(model_); }
  std::string error(const ModelConfig& model) {
    const TemporaryFolder folder;
    folder.file(
        "adapter_config.json",
        R"({"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": )" + targets + "}");
    folder.file("adapter_model.safetensors", safetensors_bytes(tensors).substr(0, keep));
    return error_of([&] { load_peft_adapter(folder.path(), model); });
  }

  test::NamedTensors tensors;
  std::string targets = R"(["q_proj", "v_proj"])";
  std::size_t keep = std::string::npos;

 private:
  ModelConfig model_ = tiny_model();
};

TEST(PeftAdapterTest, DamageIsNamed) {
  EXPECT_EQ(DamagedAdapter().error(), "");
  DamagedAdapter truncated;
  truncated.keep = 900;
  EXPECT_THAT(truncated.error(), HasSubstr("truncated"));
  DamagedAdapter missing;
  missing.tensors.pop_back();
  EXPECT_THAT(missing.error(),
              HasSubstr(std::string(kPrefix) + "1.self_attn.v_proj.lora_B.weight' is missing"));
  DamagedAdapter extra;
  extra.targets = R"(["q_proj"])";
  EXPECT_THAT(extra.error(), AllOf(HasSubstr("v_proj.lora_A"), HasSubstr("does not target it")));
  DamagedAdapter nothing;
  nothing.targets = R"(["c_attn"])";
  nothing.tensors.clear();
  EXPECT_THAT(nothing.error(), HasSubstr("match no linear layer"));
  DamagedAdapter infinite;
  const std::vector<kernels::Bf16> values(32, kernels::Bf16{0x7f80});
  infinite.tensors[0].second.data = values.data();
  EXPECT_THAT(infinite.error(),
              AllOf(HasSubstr("0.self_attn.q_proj.lora_A"), HasSubstr("[0, 0] is not finite")));
  DamagedAdapter wide;
  const std::vector<std::int32_t> same_bits(32, 0);
  wide.tensors[0].second.type = kernels::DType::kF32;
  wide.tensors[0].second.columns = 4;
  wide.tensors[0].second.data = same_bits.data();
  EXPECT_THAT(wide.error(), AllOf(HasSubstr("[4, 4]"), HasSubstr("needs [4, 8]")));
}

TEST(PeftAdapterTest, AdaptersOfEmbeddingsAndHeadsAreRefused) {
  DamagedAdapter head;
  head.targets = R"(["q_proj", "v_proj", "lm_head"])";
  EXPECT_THAT(head.error(), AllOf(HasSubstr("target_modules"), HasSubstr("lm_head")));
  for (const auto& [name, reason] : std::vector<std::pair<std::string, std::string>>{
           {"base_model.model.model.embed_tokens.lora_embedding_A", "embedding"},
           {"base_model.model.lm_head.lora_A.weight", "LM head"},
           {std::string(kPrefix) + "0.self_attn.q_proj.lora_magnitude_vector", "DoRA"}}) {
    DamagedAdapter extra;
    extra.tensors.emplace_back(name, extra.tensors[0].second);
    EXPECT_THAT(extra.error(), AllOf(HasSubstr(name), HasSubstr(reason)));
  }
}

TEST(PeftAdapterTest, AnAdapterOfAnotherBaseIsRefused) {
  ModelConfig wider = tiny_model();
  wider.hidden = 16;
  EXPECT_THAT(DamagedAdapter().error(wider),
              AllOf(HasSubstr("[4, 8]"), HasSubstr("the model needs [4, 16]")));
  ModelConfig fewer = tiny_model();
  fewer.layers = 1;
  EXPECT_THAT(DamagedAdapter().error(fewer), HasSubstr("the model has 1 layers"));
  ModelConfig more = tiny_model();
  more.layers = 3;
  EXPECT_THAT(DamagedAdapter().error(more), HasSubstr("layers.2.self_attn.q_proj.lora_A.weight"));
}

TEST(PeftAdapterTest, FoldersWithoutAnAdapterAreRefused) {
  const TemporaryFolder folder;
  const auto error = [&] {
    return error_of([&] { load_peft_adapter(folder.path(), tiny_model()); });
  };
  EXPECT_THAT(error_of([&] { load_peft_adapter(folder / "none", tiny_model()); }),
              HasSubstr("no such folder"));
  EXPECT_THAT(error(), HasSubstr("adapter_config.json: no such file"));
  folder.file("adapter_config.json", R"({"peft_type": "LORA", "r": 4, "lora_alpha": 4,
                                         "target_modules": ["q_proj"]})");
  EXPECT_THAT(error(), HasSubstr("holds no adapter_model.safetensors"));
  folder.file("adapter_model.bin", "pickle");
  EXPECT_THAT(error(), HasSubstr("safe_serialization"));
}

}  // namespace
}  // namespace servelab
