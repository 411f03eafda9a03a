// servelab perf-model: lines through measured batches, the file between fit and policies, and every
// refusal.
#include "engine/cli/perf_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "engine/run/point.h"
#include "tests/support/error_of.h"
#include "tests/support/program.h"

namespace servelab {
namespace {

using test::error_of;
using test::ProgramResult;
using test::run_program;
using ::testing::HasSubstr;

constexpr const char* kHead = "kernel,phase,ranks,latency_ms\n";
// 10 + load / 2 with errors of -1, 1, 1, -1, which no line explains: load 8 to 32, so the squares
// that the line explains are (144 + 16 + 16 + 144) / 4 = 80, those left 4, and R2 80 / 84.
constexpr const char* kNoisy =
    "mbgmv,decode,8,13\n"
    "mbgmv,decode,8 8,19\n"
    "mbgmv,decode,2x8 8,23\n"
    "mbgmv,decode,16 2x8,25\n";

class PerfModel : public ::testing::Test {
 protected:
  std::vector<KernelPerf> fit(const std::string& rows, const std::string& kernel = "") const {
    const std::string path = folder_.file("m.csv", kHead + rows);
    return fit_perf_model(read_perf_samples(path), kernel, "m.csv");
  }
  std::string refusal(const std::string& rows, const std::string& kernel = "") const {
    return error_of([&] { fit(rows, kernel); });
  }
  std::string refusal_of_model(const std::string& yaml) const {
    return error_of([&] { rank_model(folder_.file("m.yaml", yaml), "bgmv", true); });
  }
  void expect_refused(const std::vector<std::string>& arguments, const std::string& part) const {
    const ProgramResult result = run_program(arguments);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr("servelab: error: "));
    EXPECT_THAT(result.err, HasSubstr(part));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }

  test::TemporaryFolder folder_;
};

TEST_F(PerfModel, FindsAKnownLineUnderNoiseWithTheR2ThatTheNoiseLeaves) {
  const std::vector<KernelPerf> models = fit(kNoisy);
  ASSERT_EQ(models.size(), 1u);
  EXPECT_EQ(models[0].kernel, "mbgmv");
  EXPECT_FALSE(models[0].prefill.has_value());
  const FittedRankLine& decode = models[0].decode.value();
  EXPECT_NEAR(decode.line.alpha_ms, 0.5, 1e-12);
  EXPECT_NEAR(decode.line.beta_ms, 10, 1e-12);
  EXPECT_NEAR(decode.r2, 80.0 / 84, 1e-12);
  EXPECT_EQ(decode.points, 4);
}

// The same batches count otherwise by kernel: |S| x max under bgmv, the sum under mbgmv.
TEST_F(PerfModel, EachKernelHasItsOwnLoad) {
  const auto models =
      fit("bgmv,prefill,8 64,128\nbgmv,prefill,3x8,24\nbgmv,prefill,32,32\n"
          "mbgmv,prefill,8 64,72\nmbgmv,prefill,3x8,24\nmbgmv,prefill,32,32\n");
  ASSERT_EQ(models.size(), 2u);
  for (const KernelPerf& perf : models) {
    EXPECT_NEAR(perf.prefill->line.alpha_ms, 1, 1e-12) << perf.kernel;
    EXPECT_NEAR(perf.prefill->line.beta_ms, 0, 1e-9) << perf.kernel;
    EXPECT_NEAR(perf.prefill->r2, 1, 1e-12) << perf.kernel;
  }
}

TEST_F(PerfModel, AFileReadsBackAsItWasFitted) {
  const std::vector<KernelPerf> models = fit(kNoisy);
  const std::string path = folder_.file("m.yaml", perf_model_yaml(models, "two\nlines"));
  const std::vector<KernelPerf> again = read_perf_model(path);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].decode->line.alpha_ms, models[0].decode->line.alpha_ms);
  EXPECT_EQ(again[0].decode->line.beta_ms, models[0].decode->line.beta_ms);
  EXPECT_EQ(again[0].decode->r2, models[0].decode->r2);
  EXPECT_FALSE(again[0].prefill.has_value());
}

TEST_F(PerfModel, RefusesWhatNoLineFits) {
  EXPECT_THAT(refusal("bgmv,decode,8,1\nbgmv,decode,16,2\n"),
              HasSubstr("m.csv: bgmv decode: 2 points with several loads; a line needs 3"));
  EXPECT_THAT(refusal("bgmv,decode,8 8,1\nbgmv,decode,16,2\nbgmv,decode,2x8,2\n"),
              HasSubstr("3 points with one load"));
  EXPECT_THAT(refusal("bgmv,decode,8,3\nbgmv,decode,16,2\nbgmv,decode,32,1\n"),
              HasSubstr("does not grow with the load (slope -0.0"));
  EXPECT_THAT(refusal(kNoisy, "bgmv"), HasSubstr("no batch under kernel 'bgmv'; did you"));
  EXPECT_THAT(refusal(""), HasSubstr("holds no batch"));
}

TEST_F(PerfModel, RefusesBadRowsByTheirLine) {
  for (const char* bad : {"nan", "inf", "-1", "1e308", "1e999", "", "soon"}) {
    EXPECT_THAT(refusal(std::string(kNoisy) + "mbgmv,decode,8," + bad + "\n"), HasSubstr("m.csv:6"))
        << bad;
  }
  for (const char* bad : {"", "0", "-8", "8x", "x8", "1e3", "99999999999999999999", "65537", "8;8",
                          "1000001x8", "900000x8 900000x8"}) {
    EXPECT_THAT(refusal(std::string("mbgmv,decode,") + bad + ",1\n"), HasSubstr("m.csv:2: "))
        << bad;
  }
  EXPECT_THAT(refusal("bgvm,decode,8,1\n"),
              HasSubstr("unknown kernel 'bgvm'; did you mean 'bgmv'"));
  EXPECT_THAT(refusal("bgmv,decoding,8,1\n"), HasSubstr("unknown phase 'decoding'"));
  const auto of = [&](const std::string& text) {
    return error_of([&] { read_perf_samples(folder_.file("h.csv", text)); });
  };
  EXPECT_THAT(of("kernel,phase,rank,latency_ms\n"), HasSubstr("h.csv:1: unknown column 'rank'"));
  EXPECT_THAT(of("kernel,phase,latency_ms\n"), HasSubstr("column 'ranks' is missing"));
  EXPECT_THAT(error_of([&] { read_perf_samples(folder_ / "no.csv"); }), HasSubstr("no such file"));
}

TEST_F(PerfModel, RefusesBadFilesByTheirPlace) {
  const std::string line = "{alpha_ms: 1, beta_ms: 2}";
  EXPECT_EQ(refusal_of_model("bgmv: {prefill: " + line + ", decode: " + line + "}\n"), "");
  EXPECT_THAT(refusal_of_model("bgmv: {decode: " + line + "}\n"), HasSubstr("no line of prefill"));
  EXPECT_THAT(refusal_of_model("bgmv: {prefill: " + line + "}\n"), HasSubstr("no line of decode"));
  EXPECT_THAT(refusal_of_model("mbgmv: {decode: " + line + "}\n"),
              HasSubstr("no model of kernel 'bgmv'; did you mean 'mbgmv'"));
  EXPECT_THAT(refusal_of_model("bgmv: {decode: {alpha_ms: -1, beta_ms: 2}}\n"),
              HasSubstr("m.yaml:1:"));
  EXPECT_THAT(refusal_of_model("bgmv: {decode: {alpha_ms: .nan, beta_ms: 2}}\n"),
              HasSubstr("'alpha_ms' must be a number"));
  EXPECT_THAT(refusal_of_model("bgmv: {decode: {alpha_ms: 1}}\n"), HasSubstr("needs 'beta_ms'"));
  EXPECT_THAT(refusal_of_model("bgmv: {decodes: " + line + "}\n"), HasSubstr("unknown phase"));
  EXPECT_THAT(refusal_of_model("what: {decode: " + line + "}\n"), HasSubstr("unknown kernel"));
  EXPECT_THAT(refusal_of_model("bgmv: 3\n"), HasSubstr("must be a map"));
  EXPECT_THAT(refusal_of_model(""), HasSubstr("is a map of kernels"));
  EXPECT_NE(error_of([&] { rank_model(folder_ / "no.yaml", "bgmv", true); }), "");
}

TEST_F(PerfModel, TheProgramFitsAndPredicts) {
  const std::string csv = folder_.file("m.csv", std::string(kHead) + kNoisy);
  const std::string yaml = folder_ / "m.yaml";
  const ProgramResult fitted = run_program({"perf-model", "fit", csv, "--out", yaml});
  ASSERT_EQ(fitted.code, 0) << fitted.err;
  const ProgramResult predicted = run_program({"perf-model", "predict", yaml, "--ranks", "8,3x64"});
  EXPECT_EQ(predicted.code, 0) << predicted.err;
  EXPECT_EQ(predicted.out, "mbgmv decode 110.000 ms at load 200 (R2 0.952)\n");
  expect_refused({"perf-model", "predict", yaml, "--ranks", "8", "--kernel", "bgmv"},
                 "no model of kernel 'bgmv'");
  expect_refused({"perf-model", "predict", yaml}, "--ranks");
  expect_refused({"perf-model", "predict", yaml, "--ranks", "8,-1"}, "--ranks: '-1'");
  expect_refused({"perf-model", "guess", yaml}, "unknown action 'guess'");
  expect_refused({"perf-model", "fit", folder_ / "no.csv", "--out", folder_ / "no.yaml"}, "no.csv");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "no.yaml"));
}

// --- runs, and the policy ---

constexpr const char* kClosed =
    "title: test\nmodel: llama-2-7b\nhardware: a10-24g\n"
    "engine: {max_batch: 24, max_batch_tokens: 512, block_tokens: 16}\n"
    "workload:\n"
    "  requests: 8\n"
    "  adapters: {count: 24, ranks: [8]}\n"
    "  arrivals: {process: closed}\n"
    "  popularity: {kind: round-robin}\n"
    "  lengths: {source: fixed, prompt: 8, output: 4}\n"
    "techniques:\n"
    "  - {technique: vllm-lora, label: bgmv, with: {kernel: bgmv}}\n"
    "  - {technique: vllm-lora, label: mbgmv, with: {kernel: mbgmv}}\n";

TEST_F(PerfModel, FitsTheResultsOfRuns) {
  const auto fit_of = [&](const std::string& name, const std::string& sweep) {
    const std::string spec = folder_.file(name + ".yaml", kClosed + sweep);
    const ProgramResult ran = run_program({"run", spec, "--out", folder_.path(), "-q"});
    EXPECT_EQ(ran.code, 0) << ran.err;
    return run_program({"perf-model", "fit", folder_ / name});
  };
  const ProgramResult fitted = fit_of(
      "closed",
      "sweep: {workload.requests: [2, 12, 24], workload.adapters.ranks: [[8], [64], [8, 64]]}\n");
  ASSERT_EQ(fitted.code, 0) << fitted.err;
  const auto models = read_perf_model(folder_.file("runs.yaml", fitted.out));
  ASSERT_EQ(models.size(), 2u);
  for (const KernelPerf& perf : models) {
    EXPECT_EQ(perf.decode->points, 9) << perf.kernel;
    EXPECT_EQ(perf.prefill->points, 9) << perf.kernel;
    EXPECT_GT(perf.decode->r2, 0.5) << perf.kernel;
    EXPECT_GT(perf.decode->line.beta_ms, 20) << "14 GB of weights at 600 GB/s";
  }
  const ProgramResult queued = fit_of("queued", "sweep: {workload.requests: [2, 48]}\n");
  EXPECT_EQ(queued.code, 2);
  EXPECT_THAT(queued.err, HasSubstr("did not run as one batch"));
  expect_refused({"perf-model", "fit", folder_ / "nowhere.h5"}, "run the spec first");
}

class ModelParameter : public PerfModel {
 protected:
  // Settings of a spec that lies beside m.yaml.
  PointSettings point(const std::string& route_with, const std::string& more = "") {
    const std::string spec = folder_.file(
        "case.yaml", std::string(test::kSmallSpec) + "  requests: 20\ncluster: {replicas: 2, " +
                         "route: rank-aware, route_with: " + route_with +
                         "}\ntechniques: [slora]\n" + more);
    const Spec loaded = load_spec(spec, SERVELAB_SOURCE_DIR "/experiments");
    return resolve_point(loaded, loaded.positions.front(), loaded.techniques.front(), 0);
  }
  void model(double decode_alpha_ms, const std::string& name = "m.yaml") {
    folder_.file(name, "mbgmv:\n  prefill: {alpha_ms: 0.01, beta_ms: -3}\n  decode: {alpha_ms: " +
                           std::to_string(decode_alpha_ms) + ", beta_ms: 30}\n");
  }
  static std::string key_of(const PointSettings& settings) {
    const BuiltWorkload workload = build_point_workload(settings, "");
    return point_key(effective_settings(settings, workload), workload);
  }
};

TEST_F(ModelParameter, WhatWasReadIsRecordedAndNotWhere) {
  model(0.25);
  const PointSettings read = point("{model: m.yaml}");
  EXPECT_EQ(read.route_params.find("decode_alpha_ms")->scalar, "0.25");
  EXPECT_EQ(read.route_params.find("prefill_beta_ms")->scalar, "-3");
  EXPECT_EQ(read.route_params.find("model")->scalar, "");
  model(0.25, "n.yaml");
  EXPECT_EQ(key_of(point("{model: n.yaml}")), key_of(read));
  EXPECT_EQ(key_of(point("{decode_alpha_ms: 0.25, decode_beta_ms: 30, prefill_alpha_ms: 0.01, "
                         "prefill_beta_ms: -3}")),
            key_of(read));
  model(0.5);
  EXPECT_NE(key_of(point("{model: m.yaml}")), key_of(read));
  // The policy of a run is made from what was recorded: the file may be gone.
  std::filesystem::remove(folder_ / "m.yaml");
  EXPECT_NE(point_cluster_policy(read), nullptr);
}

TEST_F(ModelParameter, BadModelsAreRefusedWithTheirPlace) {
  model(0.25);
  const auto refusal = [&](const std::string& with) { return error_of([&] { point(with); }); };
  EXPECT_THAT(refusal("{model: no.yaml}"), HasSubstr("case.yaml:"));
  EXPECT_THAT(refusal("{model: no.yaml}"), HasSubstr("'no.yaml' does not exist"));
  EXPECT_THAT(refusal("{model: m.yaml, kernel: bgmv}"), HasSubstr("no model of kernel 'bgmv'"));
  EXPECT_THAT(refusal("{model: m.yaml, decode_alpha_ms: 1}"), HasSubstr("leave out those beside"));
  EXPECT_THAT(refusal("{model: [m.yaml]}"), HasSubstr("'model' must be text"));
}

// One request a step, and a cost model that knows no ranks.
TEST_F(ModelParameter, WithoutAModelCostsMustGrowWithRanks) {
  const std::string spec = folder_.file(
      "flat.yaml",
      "title: test\nmodel: llama-134m\nhardware: cpu-2t-llama-134m-placement\n"
      "engine: {max_batch: 1}\ncluster: {replicas: 2, route: rank-aware}\n"
      "workload: {requests: 4, adapters: {count: 4, ranks: [8]}, arrivals: {rate: 5},\n"
      "           lengths: {source: fixed, prompt: 16, output: 4}}\ntechniques: [slora]\n");
  const ProgramResult result = run_program({"run", spec, "--out", folder_.path(), "-q"});
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr("do not grow with ranks"));
  EXPECT_THAT(result.err, HasSubstr("model: FILE"));
}

}  // namespace
}  // namespace servelab
