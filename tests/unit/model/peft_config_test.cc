// Which modules a PEFT adapter changes, and which settings are refused.
#include "engine/model/peft_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/support/error_of.h"

namespace servelab {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kQ0 = "model.layers.0.self_attn.q_proj";
constexpr const char* kQ1 = "model.layers.1.self_attn.q_proj";
constexpr const char* kV11 = "model.layers.11.self_attn.v_proj";
constexpr const char* kDown1 = "model.layers.1.mlp.down_proj";

PeftConfig config(const std::string& more) {
  return PeftConfig(R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16)" + more + "}", "c.json");
}
std::string error(const std::string& more) {
  return error_of([&] { config(more); });
}

// The expected values are those of Python's re.fullmatch.
TEST(NamePatternTest, MatchesAsPythonDoes) {
  const auto matches = [](const std::string& pattern, const std::string& name) {
    return NamePattern(pattern, "p").matches(name);
  };
  EXPECT_TRUE(matches(R"(.*\.(q|v)_proj)", kQ0));
  EXPECT_FALSE(matches(R"(\.(q|v)_proj)", kQ0));
  EXPECT_TRUE(matches(R"(model\.layers\.[0-3]\..*q_proj$)", kQ0));
  EXPECT_FALSE(matches(R"(model\.layers\.[^0-3]\..*q_proj)", kQ0));
  EXPECT_TRUE(matches(R"(^(model)(?=\.).*\.(?:o|q)_proj)", kQ0));
  EXPECT_FALSE(matches(R"((?!.*self_attn).*)", kQ0));
  EXPECT_TRUE(matches(R"((?!.*mlp).*)", kQ0));
  EXPECT_TRUE(matches(R"(model\.layers\.\d{2,}\.\w+\.v_proj)", kV11));
  EXPECT_FALSE(matches(R"(model\.layers\.\d{3}\.\w+\.v_proj)", kV11));
  EXPECT_TRUE(matches(R"((?P<a>[a-z_.0-9]+?)\bq_proj)", kQ0));
  EXPECT_TRUE(matches("a{,2}b{x}", "aab{x}"));
  EXPECT_TRUE(matches("[]a-]+", "a-]"));
  EXPECT_TRUE(matches("", ""));
  EXPECT_TRUE(matches("a|", ""));
  EXPECT_TRUE(matches("(a?b?){2,4}c", "abbabc"));
  EXPECT_FALSE(matches("(ab){2}", "ab"));
}

TEST(NamePatternTest, TailsBeginAtTheStartOrBehindADot) {
  const auto tail = [](const std::string& pattern, const std::string& name) {
    return NamePattern(pattern, "p").matches_tail(name);
  };
  EXPECT_TRUE(tail("q_proj", kQ0));
  EXPECT_FALSE(tail("_proj", kQ0));
  EXPECT_TRUE(tail("self_attn.q_proj", kQ0));
  EXPECT_TRUE(tail(R"(layers\.0\..*(q|v)_proj)", kQ0));
  EXPECT_FALSE(tail(R"(^layers\.0\..*)", kQ0));
  EXPECT_FALSE(tail("layers.1.self_attn.v_proj", kV11));
}

// What PCRE2 by itself reads otherwise than Python, some of it since 10.43.
TEST(NamePatternTest, MeansWhatPythonMeans) {
  const auto matches = [](const std::string& pattern, const std::string& name) {
    return NamePattern(pattern, "p").matches(name);
  };
  EXPECT_TRUE(matches("a{,2}", "aa"));
  EXPECT_TRUE(matches("a{,}b", "aaab"));
  EXPECT_FALSE(matches("a{,2}", "a{,2}"));
  EXPECT_TRUE(matches("a{ 1, 2 }", "a{ 1, 2 }"));
  EXPECT_TRUE(matches("a{}{{2}", "a{}{{"));
  EXPECT_TRUE(matches("[[:alpha:]]+", "a]]"));  // one of [:alph, then brackets
  EXPECT_FALSE(matches("[[:alpha:]]", "b"));
  EXPECT_TRUE(matches("[\\.\\-\\]^]+", ".]-^"));
  EXPECT_TRUE(matches("[^]a]+", "b"));
  EXPECT_TRUE(matches("a.c$", "abc"));
  EXPECT_FALSE(matches("a.c", "a\nc"));
  EXPECT_TRUE(matches("a.c", "a\rc"));
  EXPECT_TRUE(matches("(?:a|(?P<n>b))*(?!.)", "abab"));
}

TEST(NamePatternTest, WhatTakesTooLongIsAnError) {
  const std::string name(200, 'a');
  std::string nested = "a";
  for (int i = 0; i < 40; ++i) nested = "(" + nested + ")*";
  for (const std::string& pattern :
       {nested + "[bc]", std::string("(a|aa|a?)*(a+)+[bc]"), std::string(".*.*.*.*.*.*.*.*[xy]")}) {
    EXPECT_THAT(error_of([&] { NamePattern(pattern, "here").matches(name); }),
                AllOf(HasSubstr("here: the pattern"), HasSubstr("takes too long")))
        << pattern;
    EXPECT_THAT(error_of([&] { NamePattern(pattern, "here").matches_tail("x." + name); }),
                HasSubstr("takes too long"))
        << pattern;
  }
  EXPECT_THAT(error_of([&] { NamePattern("((a{0,999}){999}){999}b", "p"); }), HasSubstr("large"));
}

TEST(NamePatternTest, OtherSyntaxIsRefused) {
  for (const char* pattern : {"(",
                              ")",
                              "a)",
                              "*a",
                              "a**",
                              "a*+",
                              "[a",
                              "[z-a]",
                              "(?<=a)b",
                              "(?i)a",
                              "(a)\\1",
                              "a{3,2}",
                              "a{2000}",
                              "\\",
                              "\\q",
                              "(?P<n",
                              "a{2}{3}",
                              "\xc3\xa9?a",
                              "(*UTF)a",
                              "(?>a)",
                              "(?#a)a",
                              "(?P=n)",
                              "(?P<n>a)(?P<n>b)",
                              "^*",
                              "\\b+",
                              "(|*)",
                              "a\\Z",
                              "\\Qa)",
                              "a\\Kb",
                              "a*??",
                              "{2}",
                              "[\\d-a]",
                              "[\\A]",
                              "[a\\",
                              "a?{2}",
                              "(?",
                              "[\xc3]"}) {
    EXPECT_THAT(error_of([&] { NamePattern(pattern, "here"); }), HasSubstr("here: the pattern"))
        << pattern;
  }
  EXPECT_THAT(error_of([&] { NamePattern(std::string(5000, '('), "p"); }), HasSubstr("too long"));
  EXPECT_THAT(error_of([&] { NamePattern("a\n\x1b[", "p"); }), HasSubstr("pattern 'a??[' "));
  EXPECT_THAT(error_of([&] { NamePattern(std::string(500, '('), "p"); }), HasSubstr("deeply"));
}

TEST(PeftConfigTest, ListsMatchDottedSuffixes) {
  const PeftConfig c = config(R"(, "target_modules": ["q_proj", "mlp.down_proj", "roj"])");
  EXPECT_TRUE(c.targets(kQ0));
  EXPECT_TRUE(c.targets(kDown1));
  EXPECT_FALSE(c.targets(kV11));
  EXPECT_EQ(c.rank(kQ0), 8);
  EXPECT_EQ(c.scale(kQ0), 2);
}

TEST(PeftConfigTest, TextsArePatternsOrAllLinear) {
  const PeftConfig pattern = config(R"(, "target_modules": ".*\\.(q|down)_proj")");
  EXPECT_TRUE(pattern.targets(kQ0) && pattern.targets(kDown1));
  EXPECT_FALSE(pattern.targets(kV11));
  const PeftConfig all =
      config(R"(, "target_modules": "All-Linear", "exclude_modules": ["v_proj"])");
  EXPECT_TRUE(all.targets(kQ0));
  EXPECT_FALSE(all.targets(kV11) || all.targets("lm_head"));
  const PeftConfig some =
      config(R"(, "target_modules": ["q_proj"], "exclude_modules": ".*layers\\.1\\..*")");
  EXPECT_TRUE(some.targets(kQ0));
  EXPECT_FALSE(some.targets(kQ1));
}

TEST(PeftConfigTest, LayersToTransformSelectLayersButNotFullNames) {
  const std::string targets =
      R"(, "target_modules": ["q_proj", "v_proj", ")" + std::string(kDown1) + R"("], )";
  const PeftConfig one = config(targets + R"("layers_to_transform": 0)");
  EXPECT_TRUE(one.targets(kQ0) && one.targets(kDown1));
  EXPECT_FALSE(one.targets(kQ1) || one.targets(kV11));
  const PeftConfig two =
      config(targets + R"("layers_to_transform": [1, 11], "layers_pattern": ["h", "layers"])");
  EXPECT_TRUE(two.targets(kQ1) && two.targets(kV11));
  EXPECT_FALSE(two.targets(kQ0));
  EXPECT_FALSE(
      config(targets + R"("layers_to_transform": [1], "layers_pattern": "blocks")").targets(kQ1));
  EXPECT_TRUE(config(targets + R"("layers_to_transform": [])").targets(kQ1));
  EXPECT_THAT(error(R"(, "target_modules": ".*", "layers_to_transform": [1])"),
              HasSubstr("layers_to_transform"));
  EXPECT_THAT(error(targets + R"("layers_pattern": "layers")"), HasSubstr("layers_pattern"));
}

TEST(PeftConfigTest, TheFirstPatternThatMatchesGivesRankAndAlpha) {
  const PeftConfig c = config(
      R"(, "target_modules": ["q_proj", "v_proj"], "use_rslora": true,
         "rank_pattern": {"layers\\.0\\..*": 4, "q_proj": 16},
         "alpha_pattern": {"self_attn.v_proj": 3.5, "v_proj": 7})");
  EXPECT_EQ(c.rank(kQ0), 4);
  EXPECT_EQ(c.rank(kQ1), 16);
  EXPECT_EQ(c.rank(kV11), 8);
  EXPECT_FLOAT_EQ(c.scale(kQ0), 8);
  EXPECT_FLOAT_EQ(c.scale(kQ1), 4);
  EXPECT_FLOAT_EQ(c.scale(kV11), static_cast<float>(3.5 / std::sqrt(8.0)));
}

TEST(PeftConfigTest, WhatServelabDoesNotComputeIsRefusedByItsKey) {
  const std::string targets = R"(, "target_modules": ["q_proj"])";
  EXPECT_EQ(
      error(targets + R"(, "inference_mode": true, "lora_dropout": 0.1, "qalora_group_size": 16,
      "loftq_config": {}, "megatron_core": "megatron.core", "new_key": null, "modules_to_save": [],
      "init_lora_weights": "gaussian", "fan_in_fan_out": true)"),
      "");
  const std::vector<std::pair<std::string, std::string>> refused = {
      {"use_dora", "true"},
      {"bias", R"("all")"},
      {"modules_to_save", R"(["lm_head"])"},
      {"lora_bias", "true"},
      {"alora_invocation_tokens", "[]"},
      {"layer_replication", "[[0, 2]]"},
      {"megatron_config", R"({"a": 1})"},
      {"target_parameters", R"(["w"])"},
      {"trainable_token_indices", "[1]"},
      {"use_qalora", "true"},
      {"use_bdlora", R"({"nblocks": 2})"},
      {"init_lora_weights", R"("pissa_niter_4")"},
      {"kasa_config", R"({"beta": 1})"},
      {"a_future_key", "1"},
      {"rank_pattern", R"({"q_proj": 0})"},
      {"alpha_pattern", R"({"q_proj": "x"})"},
      {"rank_pattern", R"({"(": 4})"},
      {"exclude_modules", "3"}};
  for (const auto& [key, value] : refused) {
    EXPECT_THAT(error(targets + ", \"" + key + "\": " + value),
                AllOf(HasSubstr("c.json: "), HasSubstr(key)));
  }
  EXPECT_THAT(error(""), HasSubstr("target_modules"));
  EXPECT_THAT(error_of([] { PeftConfig(R"({"peft_type": "IA3"})", "c.json"); }), HasSubstr("IA3"));
  EXPECT_THAT(error_of([] { PeftConfig(R"({"peft_type": "LORA", "r": 8})", "c.json"); }),
              HasSubstr("'lora_alpha' is missing"));
}

}  // namespace
}  // namespace servelab
