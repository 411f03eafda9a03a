// config.json of Hugging Face models: what is read, and what is refused because servelab would
// compute something else.
#include "engine/model/hf_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/error_of.h"
#include "tests/unit/model/weights_testing.h"

namespace servelab {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kSizes =
    R"("hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,)"
    R"( "intermediate_size": 128, "vocab_size": 100)";

ModelConfig config(const std::string& type, const std::string& more = "") {
  return parse_hf_config("{\"model_type\": \"" + type + "\", " + kSizes + more + "}", "config.json",
                         "m");
}
std::string error(const std::string& type, const std::string& more) {
  return error_of([&] { config(type, more); });
}

TEST(HfModelTest, AbsentKeysMeanWhatTransformersFillsIn) {
  const ModelConfig llama = config("llama");
  EXPECT_EQ(llama.kv_heads, 8);
  EXPECT_EQ(llama.head_dim, 8);
  EXPECT_EQ(llama.max_context_tokens, 2048);
  EXPECT_EQ(llama.rope_theta, 10000);
  EXPECT_EQ(llama.rms_norm_eps, 1e-6);
  EXPECT_FALSE(llama.qkv_bias || llama.tied_embeddings);
  EXPECT_EQ(config("llama", R"(, "num_key_value_heads": null, "head_dim": null)").kv_heads, 8);
  const ModelConfig mistral = config("mistral");
  EXPECT_EQ(mistral.kv_heads, 8);
  EXPECT_EQ(mistral.max_context_tokens, 4096);  // the default window
  EXPECT_TRUE(config("qwen2", R"(, "num_key_value_heads": 2)").qkv_bias);
  EXPECT_THAT(error("qwen2", ""), HasSubstr("num_key_value_heads"));  // 32 by default
}

TEST(HfModelTest, BothLayoutsOfRotarySettingsAreRead) {
  const ModelConfig old_layout =
      config("llama",
             R"(, "rope_theta": 500000.0, "rope_scaling": {"type": "llama3", "factor": 8,
          "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192})");
  const ModelConfig new_layout =
      config("llama",
             R"(, "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8,
          "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192})");
  EXPECT_EQ(old_layout.rope_theta, 500000);
  EXPECT_EQ(new_layout.rope_theta, 500000);
  EXPECT_EQ(old_layout.rope_scaling, new_layout.rope_scaling);
  EXPECT_EQ(new_layout.rope_scaling, (RopeScaling{"llama3", 8, 1, 4, 8192}));
  EXPECT_EQ(config("llama", R"(, "rope_scaling": null)").rope_scaling.type, "none");
  const ModelConfig linear =
      config("llama", R"(, "rope_scaling": {"type": "linear", "factor": 2.5})");
  EXPECT_EQ(linear.rope_scaling.type, "linear");
  EXPECT_EQ(linear.rope_scaling.factor, 2.5);
}

TEST(HfModelTest, AWindowCapsTheContext) {
  const auto context = [](const std::string& type, const std::string& more) {
    return config(type, R"(, "num_key_value_heads": 2, "max_position_embeddings": 1000)" + more)
        .max_context_tokens;
  };
  EXPECT_EQ(context("mistral", R"(, "sliding_window": 100)"), 100);
  EXPECT_EQ(context("mistral", R"(, "sliding_window": null)"), 1000);
  EXPECT_EQ(context("qwen2", R"(, "sliding_window": 100, "use_sliding_window": false)"), 1000);
  EXPECT_EQ(context("qwen2", R"(, "sliding_window": 100, "use_sliding_window": true)"), 100);
  EXPECT_THAT(error("llama", R"(, "sliding_window": 100)"), HasSubstr("sliding_window"));
}

TEST(HfModelTest, WhatWouldChangeTheResultIsRefusedByItsKey) {
  EXPECT_THAT(error("qwen3", ""), AllOf(HasSubstr("model_type"), HasSubstr("'qwen2'?")));
  EXPECT_THAT(error("llama", R"(, "architectures": ["LlamaForSequenceClassification"])"),
              HasSubstr("architectures"));
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"hidden_act", R"("gelu")"},
      {"attention_bias", "true"},
      {"mlp_bias", "true"},
      {"quantization_config", R"({"bits": 4})"},
      {"partial_rotary_factor", "0.5"},
      {"rope_scaling", R"({"type": "yarn", "factor": 2})"},
      {"rope_scaling.factor", ""},
      {"rope_parameters", R"({"full_attention": {"rope_theta": 1.0}})"},
      {"attn_logit_softcapping", "50.0"},
      {"num_key_value_heads", "3"},
      {"head_dim", "7"},
      {"hidden_size", "\"64\""},
      {"layer_types", R"(["sliding_attention"])"},
      {"tie_word_embeddings", "1"},
      {"is_causal", "false"},
      {"some_new_flag", "false"},
      {"some_new_value", "null"},
      {"add_cross_attention", "true"}};
  for (const auto& [key, value] : refused) {
    const std::string more = key == "rope_scaling.factor"
                                 ? R"(, "rope_scaling": {"type": "linear"})"
                                 : ", \"" + key + "\": " + value;
    const std::string text = key == "hidden_size" ? "duplicate key 'hidden_size'" : key;
    EXPECT_THAT(error("llama", more), AllOf(HasSubstr("config.json: "), HasSubstr(text))) << key;
  }
  for (const char* harmless :
       {R"("is_causal": true)", R"("is_decoder": false, "pruned_heads": {}, "use_cache": true)",
        R"("quantization_config": null)", R"("hidden_act": "swish")",
        R"("is_llama_config": true, "rope_interleaved": false)"}) {
    EXPECT_EQ(error("llama", std::string(", ") + harmless), "");
  }
}

TEST(HfModelTest, BrokenFilesAreOneLine) {
  const test::TemporaryFolder folder;
  const auto load = [&] { load_hf_config(folder.path()); };
  EXPECT_THAT(error_of(load), HasSubstr("config.json: no such file"));
  folder.file("config.json", "{\"model_type\": \"llama\",");
  EXPECT_THAT(error_of(load), HasSubstr("config.json:1:24: not valid JSON"));
  folder.file("config.json", "3");
  EXPECT_THAT(error_of(load), HasSubstr("must hold a JSON object"));
  folder.file("config.json", "{\"model_type\": \"llama\"}");
  EXPECT_THAT(error_of(load), HasSubstr("'num_hidden_layers' is missing"));
}

TEST(HfModelTest, AnAdapterInTheModelsFolderIsRefused) {
  const test::TemporaryFolder folder;
  folder.file("config.json", test::hf_config(test::tiny_model()));
  EXPECT_EQ(error_of([&] { load_hf_config(folder.path()); }), "");
  folder.file("adapter_config.json", "{}");
  EXPECT_THAT(error_of([&] { load_hf_config(folder.path()); }),
              AllOf(HasSubstr("adapter_config.json: "), HasSubstr("folder of their own")));
}

TEST(HfModelTest, GoldenModelsHaveTheirSettings) {
  const ModelConfig llama = load_hf_config(test::golden_folder("llama") + "/model");
  EXPECT_EQ(llama.rope_scaling, (RopeScaling{"llama3", 8, 1, 4, 64}));
  EXPECT_EQ(llama.name, "model");
  const ModelConfig mistral = load_hf_config(test::golden_folder("mistral") + "/model/");
  EXPECT_EQ(mistral.max_context_tokens, 128);
  EXPECT_EQ(mistral.head_dim, 32);
  EXPECT_EQ(mistral.name, "model");
  const ModelConfig qwen = load_hf_config(test::golden_folder("qwen2") + "/model");
  EXPECT_TRUE(qwen.qkv_bias && qwen.tied_embeddings);
  EXPECT_EQ(qwen.rope_theta, 1e6);
}

}  // namespace
}  // namespace servelab
