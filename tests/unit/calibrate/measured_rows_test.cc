// Rows of another server: what is refused, what is fitted to them, and how twins are judged by
// them.
#include "engine/calibrate/measured_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/backend/cost/fitted_cost.h"
#include "engine/calibrate/calibrate_from.h"
#include "engine/calibrate/expected_error.h"
#include "engine/calibrate/row_fit.h"
#include "engine/calibrate/validate.h"
#include "engine/core/rng.h"
#include "tests/support/error_of.h"
#include "tests/support/program.h"

namespace servelab {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class MeasuredRowsFile : public ::testing::Test {
 protected:
  MeasuredRows read(const std::string& text) {
    return read_measured_rows(folder_.file("rows.csv", text));
  }
  std::string error_of(const std::string& text) {
    try {
      read(text);
      return "(no error)";
    } catch (const SpecError& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      return error.what();
    }
  }
  test::TemporaryFolder folder_;
};

TEST_F(MeasuredRowsFile, SettingsOutcomesStepsAndPredictions) {
  const MeasuredRows rows = read(
      "engine.adapter_slots,workload.adapters.ranks,measured.itl_ms,measured.tokens_per_s,"
      "other.itl_s,step.decodes,measured.load_s\n"
      "8,[8 16],25.5,1000,0.03,,\n"
      ",,12,,,220,\n"
      ",,,,,,0.0085\n");
  ASSERT_EQ(rows.rows.size(), 3u);
  const MeasuredRow& run = rows.rows[0];
  EXPECT_TRUE(run.is_run());
  ASSERT_EQ(run.settings.size(), 2u);
  EXPECT_EQ(run.settings[0].first, "engine.adapter_slots");
  EXPECT_EQ(canonical_json(run.settings[1].second), "[8,16]");
  EXPECT_EQ(run.settings[1].second.mark.line, 2);
  EXPECT_DOUBLE_EQ(run.measured.itl_s, 0.0255);
  EXPECT_TRUE(std::isnan(run.measured.ttft_s));
  EXPECT_DOUBLE_EQ(run.predicted.at("other").itl_s, 0.03);
  EXPECT_EQ(rows.rows[1].step->decodes, 220);
  EXPECT_FALSE(rows.rows[1].is_run());
  EXPECT_FALSE(rows.rows[2].is_run());
  EXPECT_DOUBLE_EQ(rows.rows[2].load_s, 0.0085);
}

TEST_F(MeasuredRowsFile, BadOnesAreRefusedInOneLine) {
  EXPECT_THAT(error_of("measured.itl\n1\n"),
              AllOf(HasSubstr("rows.csv"), HasSubstr("'measured.itl'"), HasSubstr("itl_s")));
  EXPECT_THAT(error_of("engine.adapter_slots\n8\n"), HasSubstr("no column measured."));
  EXPECT_THAT(error_of("measured.itl_s\n"), HasSubstr("no rows"));
  EXPECT_THAT(error_of("measured.itl_s\nfast\n"), AllOf(HasSubstr(":2"), HasSubstr("fast")));
  EXPECT_THAT(error_of("measured.itl_s\n0.02\n35.4\n"),
              AllOf(HasSubstr(":3"), HasSubstr("measured.itl_s"), HasSubstr("_ms")));
  EXPECT_THAT(error_of("measured.itl_ms\n0.0153\n"), HasSubstr("_s)"));
  EXPECT_THAT(error_of("step.batch,measured.itl_ms\n1,2\n"), HasSubstr("decodes"));
}

// Equations of a server whose constants are known.
class RowFitting : public ::testing::Test {
 protected:
  static constexpr double kStep = 12'000, kToken = 40, kAdapter = 350, kSlot = 20;  // us

  static RowEquation equation(double tokens, double adapters, double slots) {
    RowEquation row;
    row.terms[static_cast<std::size_t>(RowTerm::kStep)] = 1;
    row.terms[static_cast<std::size_t>(RowTerm::kToken)] = tokens;
    row.terms[static_cast<std::size_t>(RowTerm::kAdapter)] = adapters;
    row.terms[static_cast<std::size_t>(RowTerm::kSlot)] = slots;
    row.itl_s = (kStep + kToken * tokens + kAdapter * adapters + kSlot * slots) / 1e6;
    row.settings = {std::to_string(static_cast<int>(slots))};
    return row;
  }
  static double us(const RowFit& fit, RowTerm term) {
    return fit.us[static_cast<std::size_t>(term)];
  }
};

TEST_F(RowFitting, RecoversTheConstantsAndJudgesRowsLeftOut) {
  RngStream draws(1, "rows");
  std::vector<RowEquation> rows;
  for (int i = 0; i < 60; ++i) {
    rows.push_back(equation(1 + draws.below(500), 1 + draws.below(64), 8 << draws.below(5)));
  }
  const RowFit fit = fit_rows(rows, {}, {"engine.adapter_slots"});
  EXPECT_NEAR(us(fit, RowTerm::kStep), kStep, 1e-3 * kStep);
  EXPECT_NEAR(us(fit, RowTerm::kToken), kToken, 1e-3 * kToken);
  EXPECT_NEAR(us(fit, RowTerm::kAdapter), kAdapter, 1e-3 * kAdapter);
  EXPECT_NEAR(us(fit, RowTerm::kSlot), kSlot, 1e-2 * kSlot);
  EXPECT_LT(fit.error, 0.01);
  ASSERT_EQ(fit.left_out.size(), 1u);
  EXPECT_LT(fit.left_out[0].error, 0.01);
  EXPECT_LT(fit.fold_error, 0.01);
  EXPECT_NEAR(std::accumulate(fit.shares.begin(), fit.shares.end(), 0.0), 1, 1e-6);

  // A row that is no such server's shows where the fit has not seen it.
  rows[7].itl_s *= 3;
  const RowFit odd = fit_rows(rows, {}, {});
  const std::string csv = rows_csv(rows, odd);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 61);
  const TermValues& without = odd.folds[7 % odd.folds.size()];
  EXPECT_NEAR(without[static_cast<std::size_t>(RowTerm::kToken)], kToken, 0.1);
  EXPECT_GT(odd.fold_error, 0.5);

  // The cost model that reads them gives the same step.
  FittedConstants constants;
  put_constants(fit, &constants);
  BatchShape batch;
  for (int i = 0; i < 100; ++i) {
    batch.add_slice(1, 300, true);
    batch.add_lora_rows(1, 300, 16);
  }
  for (int i = 0; i < 30; ++i) batch.add_lora_adapter(16);
  batch.adapter_slots = 64;
  const double expected = kStep + 100 * kToken + 30 * kAdapter + 64 * kSlot;
  EXPECT_NEAR(
      static_cast<double>(
          FittedCostModel(constants).step(batch, Exec::kUnmerged, LoraKernel::kSgmv).total()),
      1e3 * expected, 10 * expected);
}

TEST_F(RowFitting, NamesWhatRowsCannotTellApart) {
  RngStream draws(2, "rows");
  std::vector<RowEquation> rows;
  for (int i = 0; i < 30; ++i) {
    const double adapters = 1 + draws.below(64);
    rows.push_back(equation(1 + draws.below(500), adapters, 2 * adapters));
  }
  const RowFit fit = fit_rows(rows, {}, {});
  ASSERT_EQ(fit.not_told_apart.size(), 1u);
  EXPECT_EQ(fit.not_told_apart[0], (std::pair{RowTerm::kSlot, RowTerm::kAdapter}));
  EXPECT_NEAR(us(fit, RowTerm::kAdapter), kAdapter + 2 * kSlot, 1);
  EXPECT_EQ(us(fit, RowTerm::kSlot), 0);

  // Who knows what a slot costs can tell the rest.
  TermValues elsewhere{};
  elsewhere[static_cast<std::size_t>(RowTerm::kSlot)] = kSlot;
  elsewhere[static_cast<std::size_t>(RowTerm::kToken)] = 7;  // these rows tell it themselves
  const RowFit helped = fit_rows(rows, {}, {}, &elsewhere);
  EXPECT_THAT(helped.taken_over, ElementsAre(RowTerm::kSlot));
  EXPECT_TRUE(helped.not_told_apart.empty());
  EXPECT_NEAR(us(helped, RowTerm::kAdapter), kAdapter, 1);
  EXPECT_NEAR(us(helped, RowTerm::kToken), kToken, 0.1);
  EXPECT_EQ(us(helped, RowTerm::kSlot), kSlot);
}

TEST_F(RowFitting, DoubtIsWhatUnseenRowsAndTheOtherServerAreOff) {
  RowFit fit;
  fit.fold_error = 3;
  fit.kept = {RowTerm::kStep, RowTerm::kToken};
  fit.us[static_cast<std::size_t>(RowTerm::kStep)] = 100;
  fit.us[static_cast<std::size_t>(RowTerm::kToken)] = 10;
  fit.shares[static_cast<std::size_t>(RowTerm::kStep)] = 0.75;
  fit.shares[static_cast<std::size_t>(RowTerm::kToken)] = 0.25;
  TermValues elsewhere = fit.us;
  elsewhere[static_cast<std::size_t>(RowTerm::kToken)] *= 4;
  EXPECT_DOUBLE_EQ(doubt_of(fit, &elsewhere).rows, 0.06);
  EXPECT_EQ(doubt_of(fit, &elsewhere).elsewhere, 0) << "nothing was taken over";
  fit.taken_over = {RowTerm::kSlot};
  EXPECT_DOUBLE_EQ(doubt_of(fit, &elsewhere).elsewhere, 1);  // exp(sqrt(1/4) log 4) - 1
}

// A server that is never full: its latency is off by as much as the terms are.
TEST_F(RowFitting, ExpectedErrorsAreThoseOfTheTwinWithTheTermsOff) {
  const test::TemporaryFolder folder;
  RowFit fit;
  fit.kept = {RowTerm::kStep};
  fit.us[static_cast<std::size_t>(RowTerm::kStep)] = 10000;
  fit.load_s = 1e-3;
  const Spec spec =
      load_spec(folder.file("s.yaml",
                            "title: t\nmodel: llama-3.1-8b\nhardware: h100-64g-vllm-llama-3.1-8b\n"
                            "lora: {targets: [q, k, v, o, gate, up, down]}\n"
                            "workload:\n  requests: 20\n  adapters: {count: 2, ranks: [8]}\n"
                            "  arrivals: {process: poisson, rate: 1}\n"
                            "  lengths: {source: fixed, prompt: 16, output: 40}\n"
                            "techniques: [vllm-lora]\n"),
                SERVELAB_SOURCE_DIR "/experiments");
  const std::string profile =
      SERVELAB_SOURCE_DIR "/experiments/base/hardware/h100-64g-vllm-llama-3.1-8b.yaml";
  Doubt doubt;
  doubt.rows = 0.1;
  const ExpectedErrors errors = expected_errors(spec, {}, profile, fit, doubt, "");
  EXPECT_EQ(errors.runs, 1u);
  EXPECT_NEAR(errors.itl, 100 * 0.1 / 2.1, 0.2);
  EXPECT_LT(errors.throughput, 0.5);
  EXPECT_NEAR(expected_errors(spec, {}, profile, fit, {}, "").itl, 0, 1e-9);
}

TEST_F(RowFitting, RefusesTooFewRowsAndOneBatch) {
  const auto error_of = [](const std::vector<RowEquation>& rows) -> std::string {
    try {
      fit_rows(rows, {}, {});
      return "(no error)";
    } catch (const SpecError& error) {
      return error.what();
    }
  };
  EXPECT_THAT(error_of({equation(1, 2, 8), equation(20, 9, 16)}),
              AllOf(HasSubstr("2 rows"), HasSubstr("too few"), HasSubstr("measure")));
  std::vector<RowEquation> same;
  for (int i = 0; i < 20; ++i) same.push_back(equation(0, 0, 0));
  EXPECT_THAT(error_of(same), HasSubstr("the same batch"));
}

// Scheduling that is known by itself is taken out of runs, and not fitted to them again.
TEST_F(RowFitting, SchedulingIsItsOwn) {
  RngStream draws(3, "rows");
  std::vector<RowEquation> rows;
  for (int i = 0; i < 40; ++i) {
    RowEquation row = equation(1 + draws.below(500), 1 + draws.below(64), 8 << draws.below(5));
    const double waiting = 1000.0 * static_cast<double>(draws.below(20));
    row.terms[static_cast<std::size_t>(RowTerm::kWaiting)] = waiting;
    row.itl_s += 0.5e-6 * waiting;
    rows.push_back(row);
  }
  std::vector<SchedulingRow> scheduling;
  for (int i = 0; i < 10; ++i) {
    const double waiting = 2000.0 * i;
    scheduling.push_back({5.0 * i * i, waiting, (20 + 4 * 5.0 * i * i + 0.5 * waiting) / 1e6});
  }
  const RowFit fit = fit_rows(rows, scheduling, {});
  EXPECT_NEAR(us(fit, RowTerm::kWaiting), 0.5, 1e-3);
  EXPECT_NEAR(us(fit, RowTerm::kAdapter), kAdapter, 1e-2 * kAdapter);
  EXPECT_LT(fit.scheduling_error, 0.1);
}

// The fit goes beside the profile, and neither where something is read.
TEST_F(MeasuredRowsFile, CalibrateFromReplacesNothingThatItReads) {
  CalibrateFromOptions options;
  options.rows = folder_.file("mine_fit.csv", "not read any more");
  options.spec = folder_.file("server.yaml", "nor this");
  options.out = folder_ / "mine.yaml";
  EXPECT_THAT(test::error_of([&] { calibrate_from(options); }),
              AllOf(HasSubstr("would replace"), HasSubstr("mine_fit.csv")));
  options.out = folder_ / "server.yaml";
  EXPECT_THAT(test::error_of([&] { calibrate_from(options); }),
              HasSubstr("server.yaml, which is read"));
}

TEST_F(MeasuredRowsFile, PartsAndSourcesAreWords) {
  const MeasuredRows rows = read(
      "measured.tokens_per_s,measured.latency_ms,part,source\n"
      "1,2500,fitted,runs/a.jsonl\n1,,judged,\n1,,earlier,\n1,,,\n");
  ASSERT_EQ(rows.rows.size(), 4u);
  EXPECT_DOUBLE_EQ(rows.rows[0].measured.latency_s, 2.5);
  EXPECT_EQ(rows.rows[0].source, "runs/a.jsonl");
  const bool fitted[] = {true, false, false, true}, judged[] = {false, true, false, true};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(rows.rows[i].is_fitted(), fitted[i]) << i;
    EXPECT_EQ(rows.rows[i].is_judged(), judged[i]) << i;
  }
  EXPECT_THAT(error_of("measured.latency\n1\n"), HasSubstr("latency_s"));
}

TEST(AgreementTest, CountsBothSides) {
  std::vector<ValidatedPoint> points(5);
  const double served[][2] = {{80, 85}, {80, 95}, {95, 80}, {95, 95}, {70, 60}};
  for (std::size_t i = 0; i < points.size(); ++i) {
    points[i].variant = "twin";
    points[i].incoming_tokens_per_s = 100;
    points[i].engine.tokens_per_s = served[i][0];
    points[i].twin.tokens_per_s = served[i][1];
  }
  const Agreement agreement = starved(points, "twin");
  EXPECT_EQ(agreement.both, 2);
  EXPECT_EQ(agreement.only_measured, 1);
  EXPECT_EQ(agreement.only_twin, 1);
  EXPECT_EQ(agreement.neither, 1);
  EXPECT_DOUBLE_EQ(agreement.f1(), 4.0 / 6);
  points[3].engine.out_of_memory = points[3].twin.out_of_memory = true;
  EXPECT_EQ(out_of_memory(points, "twin").both, 1);
  EXPECT_TRUE(std::isnan(out_of_memory({}, "twin").f1()));
}

}  // namespace
}  // namespace servelab
