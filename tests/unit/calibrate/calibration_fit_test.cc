#include "engine/calibrate/calibration_fit.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/backend/cost/fitted_cost.h"
#include "engine/calibrate/nnls.h"
#include "engine/calibrate/profile_file.h"
#include "engine/core/config_node.h"
#include "engine/core/rng.h"
#include "tests/support/program.h"

namespace servelab {
namespace {

TEST(NnlsTest, FindsTheCoefficients) {
  RngStream rng(1, "nnls");
  LeastSquares problem(3);
  for (int i = 0; i < 50; ++i) {
    const std::vector<double> row = {1, rng.uniform() * 100, rng.uniform() * 1e6};
    problem.add(row, 5 * row[0] + 0.25 * row[1] + 1e-4 * row[2], 1);
  }
  const std::vector<double> x = problem.solve();
  EXPECT_NEAR(x[0], 5, 1e-5);
  EXPECT_NEAR(x[1], 0.25, 1e-7);
  EXPECT_NEAR(x[2], 1e-4, 1e-11);
}

TEST(NnlsTest, NegativeOnesBecomeZeroAndTheOthersTheirBest) {
  // y = 10 - x: without a negative slope the best constant is the mean.
  LeastSquares problem(3);
  for (int x = 0; x < 10; ++x) problem.add({1, static_cast<double>(x), 0}, 10.0 - x, 1);
  const std::vector<double> solution = problem.solve();
  EXPECT_NEAR(solution[0], 5.5, 1e-9);
  EXPECT_EQ(solution[1], 0);
  EXPECT_EQ(solution[2], 0);  // a feature that no row has
}

FittedConstants known() {
  FittedConstants c;
  c.token_knots = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
  for (const double t : c.token_knots) c.dense_us.push_back(6000 + 25 * t + 8 * std::sqrt(t));
  c.sample_knots = {1, 2, 4, 8, 16, 32};
  for (const double t : c.sample_knots) c.logits_us.push_back(900 + 40 * t);
  c.prefill_pair_ns = 12;
  c.prefill_token_us = 3;
  c.prefill_key_ns = 400;
  c.prefill_request_us = 20;
  c.decode_key_ns = 800;
  c.decode_request_us = 15;
  c.of(LoraKernel::kBgmv) = {200, 3, 2.0, 12, 0.5};
  c.of(LoraKernel::kMbgmv) = {220, 3, 1.8, 12, 0.5};
  c.of(LoraKernel::kSgmv) = {180, 2, 0.4, 12, 1.5};
  c.of(LoraKernel::kEinsum) = {300, 1, 0.3, 12, 0.5};
  c.lora_prefill_token_us = 4;
  c.lora_prefill_rank_token_us = 0.3;
  c.lora_prefill_adapter_rank_us = 1.2;
  return c;
}

StepSample sample(const FittedCostModel& model, const BatchShape& shape, LoraKernel kernel,
                  RngStream* noise, double amplitude) {
  const StepCost cost = model.step(shape, Exec::kUnmerged, kernel);
  const auto noisy = [&](TimeNs ns) {
    return static_cast<double>(ns) / 1e3 * (1 + amplitude * noise->normal());
  };
  StepSample s;
  s.shape = shape;
  s.kernel = kernel;
  s.dense_us = noisy(cost.dense);
  s.attention_us = noisy(cost.attention);
  s.lora_us = noisy(cost.lora);
  return s;
}

// With `shared`, all rows have one adapter: what tells reading it from computing with it.
BatchShape decodes(int requests, int context, const std::vector<int>& ranks, bool shared = false) {
  BatchShape batch;
  for (int i = 0; i < requests; ++i) {
    batch.add_slice(1, context, true);
    if (i < static_cast<int>(ranks.size())) {
      const int rank = ranks[static_cast<std::size_t>(i)];
      batch.add_lora_rows(1, context, rank);
      if (!shared || i == 0) batch.add_lora_adapter(rank);
    }
  }
  return batch;
}

// What calibrate would measure of an engine that is exactly known().
CalibrationSamples samples_of(const FittedCostModel& model, double amplitude) {
  RngStream noise(7, "noise");
  CalibrationSamples samples;
  const auto add = [&](const BatchShape& shape, LoraKernel kernel) {
    samples.steps.push_back(sample(model, shape, kernel, &noise, amplitude));
  };
  for (const int requests : {1, 2, 4, 8, 16, 32}) {
    for (const int context : {16, 128, 512}) add(decodes(requests, context, {}), LoraKernel::kSgmv);
    for (const LoraKernel kernel :
         {LoraKernel::kBgmv, LoraKernel::kMbgmv, LoraKernel::kSgmv, LoraKernel::kEinsum}) {
      for (const int rank : {8, 16, 32, 64}) {
        for (const int adapters : {requests, (requests + 1) / 2}) {
          const std::vector<int> ranks(static_cast<std::size_t>(adapters), rank);
          add(decodes(requests, 128, ranks, adapters < requests), kernel);
        }
      }
      add(decodes(requests, 128, {8, 64, 16, 32}), kernel);
    }
  }
  for (const int tokens : {2, 4, 8, 16, 32, 64, 128, 256, 512}) {
    for (const int context : {0, 256}) {
      for (const int rank : {0, 8, 64}) {
        for (const bool samples_last : {false, true}) {
          BatchShape batch;
          batch.add_slice(tokens, context, samples_last);
          if (rank > 0) {
            batch.add_lora_rows(tokens, context, rank);
            batch.add_lora_adapter(rank);
          }
          add(batch, LoraKernel::kSgmv);
        }
      }
    }
  }
  for (int i = 0; i < 30; ++i) {
    const double b = 1 + i % 7, pending = 10.0 * (i % 5), share = 0.1 * (i % 4);
    const double scheduling = 0.7 * b + 0.05 * pending + 0.2 * pending * share;
    samples.scheduler.push_back({b, pending, pending * share,
                                 scheduling * (1 + amplitude * noise.normal()),
                                 (5 + scheduling) * (1 + amplitude * noise.normal())});
  }
  for (const int rank : {8, 16, 32, 64}) {
    const Bytes bytes = 150'000LL * rank;
    samples.copies.push_back(
        {CopyKind::kHostLoad, rank, bytes, 40 + static_cast<double>(bytes) / 1e9 * 1e6});
    samples.copies.push_back(
        {CopyKind::kSwapOut, 0, bytes, 10 + static_cast<double>(bytes) / 4e9 * 1e6});
    samples.merges.push_back({rank, 9000 + 30.0 * rank});
    samples.merges.push_back({0, 2});
  }
  return samples;
}

void expect_near(double value, double expected, double tolerance, const char* what) {
  EXPECT_NEAR(value, expected, tolerance * std::abs(expected)) << what;
}

TEST(CalibrationFitTest, RecoversAKnownModelExactly) {
  const FittedConstants truth = known();
  const CalibrationFit fit = fit_calibration(samples_of(FittedCostModel(truth), 0));
  const FittedConstants& c = fit.fitted;
  EXPECT_EQ(c.token_knots.front(), 1);
  for (std::size_t i = 0; i < c.token_knots.size(); ++i) {
    for (const double sampled : {1.0, 8.0}) {  // only the sum of both tables is seen
      expect_near(c.dense_us[i] + interpolate(c.sample_knots, c.logits_us, sampled),
                  interpolate(truth.token_knots, truth.dense_us, c.token_knots[i]) +
                      interpolate(truth.sample_knots, truth.logits_us, sampled),
                  0.005, "dense");
    }
  }
  expect_near(c.prefill_pair_ns, 12, 0.01, "pairs");
  expect_near(c.decode_key_ns, 800, 0.01, "keys");
  expect_near(c.decode_request_us, 15, 0.02, "requests");
  expect_near(c.of(LoraKernel::kBgmv).row_rank_us, 2.0, 0.02, "bgmv");
  expect_near(c.of(LoraKernel::kBgmv).fixed_us, 200, 0.02, "bgmv jump");
  expect_near(c.of(LoraKernel::kSgmv).adapter_rank_us, 1.5, 0.05, "sgmv");
  expect_near(c.lora_prefill_rank_token_us, 0.3, 0.02, "prefill");
  expect_near(c.load_bytes_per_s, 1e9, 1e-6, "loads");
  expect_near(c.load_latency_us, 40, 1e-4, "loads");
  expect_near(c.merge_rank_us, 30, 1e-4, "merge");
  EXPECT_EQ(c.unmerge_us, 2);
  expect_near(c.k2_us, 0.05, 1e-3, "K2");
  expect_near(c.k3_us, 0.2, 1e-3, "K3");
  expect_near(c.k0_us, 5, 1e-3, "K0");
  expect_near(fit.placement.k1_us, 0.7, 1e-3, "K1");
  EXPECT_LT(fit.quality.front().p90_error, 0.005);
  EXPECT_EQ(fit.quality.front().part, "whole step");
}

TEST(CalibrationFitTest, NoiseStaysNoise) {
  const FittedConstants truth = known();
  const CalibrationFit fit = fit_calibration(samples_of(FittedCostModel(truth), 0.05));
  expect_near(fit.fitted.decode_key_ns, 800, 0.05, "keys");
  expect_near(fit.fitted.of(LoraKernel::kBgmv).row_rank_us, 2.0, 0.1, "bgmv");
  expect_near(fit.fitted.k1_us, 0.7, 0.2, "K1");
  EXPECT_LT(fit.quality.front().median_error, 0.05);
  EXPECT_GT(fit.quality.front().r2, 0.97);
}

TEST(CalibrationFitTest, PapersModelsAreFittedToo) {
  const CalibrationFit fit = fit_calibration(samples_of(FittedCostModel(known()), 0.02));
  EXPECT_GT(fit.bgmv.r2, 0.6);
  EXPECT_GT(fit.bgmv.alpha_us, 2);  // and the rows' dense work with it
  EXPECT_GT(fit.mbgmv.r2, 0.6);
  EXPECT_GT(fit.placement.k5_us, 5000);
  EXPECT_GT(fit.placement.k7, 1);
  EXPECT_EQ(fit.placement.load_ranks, (std::vector<double>{8, 16, 32, 64}));
}

// A core that takes `us` and `row_us` a row, of matrices that are half of the dense layers'
// weights.
int chunk_rows(double us, double row_us, const std::vector<int>& rows) {
  CalibrationSamples samples = samples_of(FittedCostModel(known()), 0);
  for (const int count : rows) samples.cores.push_back({count, 64, 0.5, us + row_us * count});
  return fit_calibration(samples).chunk_rows;
}

TEST(CalibrationFitTest, AChunkIsWhatOneCoreHasBeforeTheDevice) {
  const std::vector<int> rows = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
  // Half of the dense layers takes 3000 us and about 13 us a row: 60 us a row are too many from 66
  // rows on.
  const int chunk = chunk_rows(0, 60, rows);
  const auto device_us = [&](int count) {
    return 0.5 * interpolate(known().token_knots, known().dense_us, count);
  };
  EXPECT_NEAR(chunk, 65, 2);
  EXPECT_LE(60 * chunk, device_us(chunk) * 1.01);
  EXPECT_GT(60 * (chunk + 1), device_us(chunk + 1) * 0.99);
  EXPECT_EQ(chunk_rows(0, 0.1, rows), 512) << "no more than was measured";
  EXPECT_EQ(chunk_rows(1e5, 1, rows), 1) << "a core is given something";
  EXPECT_EQ(chunk_rows(0, 60, {}), 0) << "no core was measured";
}

TEST(CalibrationFitTest, AProfileKeepsItsChunk) {
  const std::string base = std::string(SERVELAB_SOURCE_DIR) + "/experiments/base/hardware/";
  HardwareProfile profile = load_hardware_profile(base + "cpu-2t-llama-134m.yaml");
  EXPECT_EQ(profile.effective().find("host_lora"), nullptr);
  const test::TemporaryFolder folder;
  for (const int chunk : {0, 37}) {
    profile.host_lora.chunk_rows = chunk;
    const std::string text = profile_yaml(profile, {}, "a test");
    HardwareProfile read = load_hardware_profile(folder.file("profile.yaml", text));
    EXPECT_EQ(read.host_lora.chunk_rows, chunk);
    const ConfigNode effective = read.effective();
    const ConfigNode* const section = effective.find("host_lora");
    ASSERT_EQ(section != nullptr, chunk > 0);
    if (section == nullptr) continue;
    EXPECT_EQ(section->find("chunk_rows")->scalar, "37");
  }
}

TEST(CalibrationFitTest, NothingMeasuredIsAnError) {
  EXPECT_THROW(fit_calibration(CalibrationSamples{}), SpecError);
}

TEST(CalibrationFitTest, RSquared) {
  EXPECT_DOUBLE_EQ(r_squared({1, 2, 3}, {1, 2, 3}), 1);
  EXPECT_DOUBLE_EQ(r_squared({1, 2, 3}, {2, 2, 2}), 0);
  EXPECT_TRUE(std::isnan(r_squared({1}, {1})));
}

}  // namespace
}  // namespace servelab
