#include "engine/workload/lengths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/workload/workload_testing.h"

namespace servelab {
namespace {

using test::build;
using test::cv_of;
using test::error_of;
using test::mean_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(LengthsTest, ParametricLengths) {
  const auto lengths = [](const std::string& settings) {
    return build("{requests: 50000, lengths: {" + settings + "}}").workload.requests;
  };
  const auto columns = [](const std::vector<Request>& requests) {
    std::vector<double> prompts;
    std::vector<double> outputs;
    for (const Request& request : requests) {
      prompts.push_back(request.prompt_tokens);
      outputs.push_back(request.output_tokens);
    }
    return std::pair(prompts, outputs);
  };
  const auto [fixed_prompts, fixed_outputs] =
      columns(lengths("source: fixed, prompt: 23, output: 27"));
  EXPECT_EQ(mean_of(fixed_prompts), 23);
  EXPECT_EQ(mean_of(fixed_outputs), 27);
  const auto [prompts, outputs] =
      columns(lengths("source: uniform, prompt_range: [8, 512], output_range: [1, 3]"));
  EXPECT_EQ(*std::min_element(prompts.begin(), prompts.end()), 8);
  EXPECT_EQ(*std::max_element(prompts.begin(), prompts.end()), 511);
  EXPECT_NEAR(mean_of(prompts), 259.5, 2.5);
  EXPECT_EQ(*std::max_element(outputs.begin(), outputs.end()), 2);
  const auto [ln_prompts, ln_outputs] =
      columns(lengths("source: lognormal, prompt: 200, prompt_cv: 0.5, output: 100, output_cv: 1"));
  EXPECT_NEAR(mean_of(ln_prompts), 200, 2.5);
  EXPECT_NEAR(cv_of(ln_prompts), 0.5, 0.02);
  EXPECT_NEAR(mean_of(ln_outputs), 100, 2.5);
  const auto [n_prompts, n_outputs] =
      columns(lengths("source: normal, prompt: 250, prompt_cv: 0.1, output: 231, output_cv: 0.1"));
  EXPECT_NEAR(mean_of(n_prompts), 250, 1);
  EXPECT_NEAR(cv_of(n_outputs), 0.1, 0.003);
}

TEST(LengthsTest, EmbeddedShareGptHasThePublishedMeansAndRespectsTheFilter) {
  double prompts = 0;
  double outputs = 0;
  const auto requests = build("{requests: 200000}").workload.requests;
  for (const Request& request : requests) {
    prompts += request.prompt_tokens;
    outputs += request.output_tokens;
    ASSERT_GE(request.prompt_tokens, 4);
    ASSERT_GE(request.output_tokens, 4);
    ASSERT_LE(request.prompt_tokens, 1024);
    ASSERT_LE(request.prompt_tokens + request.output_tokens, 2048);
  }
  EXPECT_NEAR(prompts / 200000, 222, 5);
  EXPECT_NEAR(outputs / 200000, 196, 5);
}

TEST(LengthsTest, EmbeddedBurstGptHasThePublishedQuantiles) {
  std::vector<double> prompts;
  std::vector<double> outputs;
  const auto requests =
      build("{requests: 50000, lengths: {source: burstgpt-like, min_tokens: 1}}").workload.requests;
  for (const Request& request : requests) {
    prompts.push_back(request.prompt_tokens);
    outputs.push_back(request.output_tokens);
  }
  std::sort(prompts.begin(), prompts.end());
  std::sort(outputs.begin(), outputs.end());
  EXPECT_NEAR(prompts[25000], 353, 15);
  EXPECT_NEAR(outputs[25000], 238, 10);
  EXPECT_NEAR(prompts[47500], 1638, 120);
  EXPECT_NEAR(outputs[47500], 841, 60);
}

TEST(LengthsTest, ScaleRatioAndOutputLimits) {
  const auto base = build("{requests: 2000}").workload.requests;
  const auto twice = build("{requests: 2000, lengths: {scale_ratio: 2}}").workload.requests;
  const auto eight = build("{requests: 2000, lengths: {scale_ratio: 8}}").workload.requests;
  for (std::size_t i = 0; i < base.size(); ++i) {
    EXPECT_EQ(twice[i].prompt_tokens, 2 * base[i].prompt_tokens);
    EXPECT_EQ(twice[i].output_tokens, 2 * base[i].output_tokens);
    const int total = base[i].prompt_tokens + base[i].output_tokens;
    EXPECT_NEAR(eight[i].prompt_tokens + eight[i].output_tokens, std::min(8 * total, 4096), 2);
    EXPECT_EQ(base[i].output_limit_tokens, 2048 - base[i].prompt_tokens);
  }
  for (const Request& request :
       build("{requests: 500, lengths: {output_limit: -1}}").workload.requests) {
    EXPECT_EQ(request.output_limit_tokens, request.output_tokens);
  }
  for (const Request& request :
       build("{requests: 500, lengths: {output_limit: 20}}").workload.requests) {
    EXPECT_LE(request.output_tokens, 20);
    EXPECT_EQ(request.output_limit_tokens, 20);
  }
}

TEST(LengthsTest, SetsWithGivenMeansKeepTheirShape) {
  const auto means = [](const std::string& lengths) {
    double prompts = 0, outputs = 0;
    const auto requests = build("{requests: 100000, lengths: {" + lengths + "}}").workload.requests;
    for (const Request& request : requests) {
      prompts += request.prompt_tokens;
      outputs += request.output_tokens;
    }
    return std::pair(prompts / 1e5, outputs / 1e5);
  };
  const auto [prompts, outputs] = means("prompt_mean: 250, output_mean: 231");
  EXPECT_NEAR(prompts, 250, 3);
  EXPECT_NEAR(outputs, 231, 3);
  const auto [short_prompts, same_outputs] = means("prompt_mean: 5");
  EXPECT_NEAR(short_prompts, 5, 0.1);  // of lengths that are rounded up from parts of a token
  EXPECT_NEAR(same_outputs, means("").second, 0.1);
  const auto [cut_prompts, cut_outputs] = means("prompt_mean: 1200, output_mean: 900");
  EXPECT_NEAR(cut_prompts, 1200, 12);  // though many are cut to the context of 4096
  EXPECT_NEAR(cut_outputs, 900, 9);

  const auto base = build("{requests: 500}").workload.requests;
  const auto scaled = build("{requests: 500, lengths: {prompt_mean: 444}}").workload.requests;
  const double ratio = 444 / means("").first;
  for (std::size_t i = 0; i < base.size(); ++i) {
    EXPECT_NEAR(scaled[i].prompt_tokens, ratio * base[i].prompt_tokens,
                1 + 0.02 * scaled[i].prompt_tokens);
    EXPECT_EQ(scaled[i].output_tokens, base[i].output_tokens);
    EXPECT_EQ(scaled[i].output_limit_tokens, 4096 - scaled[i].prompt_tokens);
  }
  EXPECT_THAT(error_of("requests: 5\nlengths: {prompt_mean: 3000, output_mean: 3000}"),
              AllOf(HasSubstr("spec.yaml:2:11: 'prompt_mean' cannot be had"),
                    HasSubstr("context of 4096 tokens")));
  EXPECT_THAT(error_of("requests: 5\nlengths: {prompt_mean: 300, scale_ratio: 2}"),
              HasSubstr("'scale_ratio' does not go with"));
  EXPECT_THAT(error_of("requests: 5\nlengths: {source: fixed, prompt_mean: 300}"),
              HasSubstr("prompt_mean"));
}

TEST(LengthsTest, FixedLengthsMustFitTheContextAndBeWhole) {
  EXPECT_THAT(error_of("requests: 5\nlengths: {source: fixed, prompt: 4000, output: 200}"),
              AllOf(HasSubstr("spec.yaml:2:26: "), HasSubstr("context of 4096 tokens")));
  EXPECT_THAT(error_of("requests: 5\nlengths: {source: fixed, output: 1.5}"),
              AllOf(HasSubstr("spec.yaml:2:26: 'output'"), HasSubstr("whole number")));
  EXPECT_EQ(error_of("{requests: 5, lengths: {source: fixed, prompt: 4000, output: 96}}"),
            "(no error)");
}

TEST(LengthsTest, RequestsCutToTheContextAreCounted) {
  const BuiltWorkload fits = build("{requests: 400}");
  EXPECT_THAT(fits.notes, IsEmpty());
  const BuiltWorkload some =
      build("{requests: 400, lengths: {source: lognormal, prompt: 1500, output: 1500}}");
  int full = 0;  // those that were cut fill the context, but for the rounding of the two lengths
  for (const Request& request : some.workload.requests) {
    full += request.prompt_tokens + request.output_tokens >= 4095 ? 1 : 0;
  }
  ASSERT_GT(full, 0);
  EXPECT_THAT(some.notes, ElementsAre(std::to_string(full) +
                                      " of 400 requests were cut to the context of 4096 tokens"));
  EXPECT_THAT(build("{requests: 40, lengths: {source: fixed, prompt: 3000, output: 1000, "
                    "scale_ratio: 2}}")
                  .notes,
              ElementsAre(HasSubstr("40 of 40 requests were cut")));
}

TEST(LengthsTest, FallbackErrorHoldsForEverySet) {
  EXPECT_THAT(error_of("requests: 5\nfallback: error\nlengths: {source: sharegpt}"),
              AllOf(HasSubstr("spec.yaml:3:"), HasSubstr("data/fetch sharegpt")));
  EXPECT_THAT(error_of("requests: 5\nfallback: error"), HasSubstr("data/fetch sharegpt"));
  EXPECT_EQ(error_of("{requests: 5, fallback: error, lengths: {source: sharegpt-like}}"),
            "(no error)");
}

}  // namespace
}  // namespace servelab
