#include "engine/calibrate/calibration_fit.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "engine/backend/cost/fitted_cost.h"
#include "engine/calibrate/nnls.h"
#include "engine/calibrate/part_fit.h"
#include "engine/core/check.h"

namespace servelab {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kNsPerUs = 1e3;
constexpr double kUsPerSecond = 1e6;

double real(std::int64_t count) { return static_cast<double>(count); }

// --- dense: two tables, each as a first value and slopes between knots, all >= 0 ---

// Features of a table at x: 1, then how much of each stretch between knots lies below x.
void add_table_features(const std::vector<double>& knots, double x, std::vector<double>* row) {
  row->push_back(x > 0 ? 1 : 0);
  for (std::size_t i = 1; i < knots.size(); ++i) {
    const bool last = i + 1 == knots.size();
    const double top = last ? std::max(x, knots[i]) : knots[i];
    row->push_back(std::clamp(x, knots[i - 1], top) - knots[i - 1]);
  }
}

std::vector<double> table_values(const std::vector<double>& knots, const double* coefficients) {
  std::vector<double> values = {coefficients[0]};
  for (std::size_t i = 1; i < knots.size(); ++i) {
    values.push_back(values.back() + coefficients[i] * (knots[i] - knots[i - 1]));
  }
  return values;
}

// Distinct values that were measured: a knot without rows beside it could be anything.
std::vector<double> knots_of(const std::vector<StepSample>& steps,
                             std::int64_t BatchShape::*field) {
  std::map<double, int> counts;
  for (const StepSample& step : steps) {
    if (step.shape.*field > 0) ++counts[real(step.shape.*field)];
  }
  std::vector<double> knots;
  for (const auto& [value, count] : counts) {
    // Powers of two and their middles, so that odd sizes test the interpolation.
    const double exponent = std::log2(value);
    const bool is_knot =
        exponent == std::floor(exponent) ||
        (value / 3 >= 1 && std::log2(value / 3) == std::floor(std::log2(value / 3)));
    if (is_knot) knots.push_back(value);
  }
  return knots;
}

void fit_dense(const std::vector<StepSample>& steps, CalibrationFit* fit) {
  FittedConstants& c = fit->fitted;
  c.token_knots = knots_of(steps, &BatchShape::tokens);
  c.sample_knots = knots_of(steps, &BatchShape::sampled);
  if (c.token_knots.empty() || c.sample_knots.empty()) {
    throw SpecError("calibration: no step of a power of two of tokens was measured");
  }
  std::vector<PartRow> rows;
  for (const StepSample& step : steps) {
    PartRow row;
    add_table_features(c.token_knots, real(step.shape.tokens), &row.features);
    add_table_features(c.sample_knots, real(step.shape.sampled), &row.features);
    row.value = step.dense_us;
    rows.push_back(std::move(row));
  }
  const PartFit part = fit_part("dense", rows, c.token_knots.size() + c.sample_knots.size());
  c.dense_us = table_values(c.token_knots, part.coefficients.data());
  c.logits_us = table_values(c.sample_knots, part.coefficients.data() + c.token_knots.size());
  fit->quality.push_back(part.quality);
}

void fit_attention(const std::vector<StepSample>& steps, CalibrationFit* fit) {
  std::vector<PartRow> rows;
  for (const StepSample& step : steps) {
    const BatchShape& s = step.shape;
    rows.push_back({{real(s.prefill_pairs) / kNsPerUs, real(s.prefill_tokens),
                     real(s.prefill_context) / kNsPerUs, real(s.prefill_requests),
                     real(s.decode_context) / kNsPerUs, real(s.decode_requests)},
                    step.attention_us});
  }
  const PartFit part = fit_part("attention", rows, 6);
  FittedConstants& c = fit->fitted;
  double* const targets[] = {&c.prefill_pair_ns,    &c.prefill_token_us, &c.prefill_key_ns,
                             &c.prefill_request_us, &c.decode_key_ns,    &c.decode_request_us};
  for (std::size_t i = 0; i < part.coefficients.size(); ++i) *targets[i] = part.coefficients[i];
  fit->quality.push_back(part.quality);
}

// --- LoRA: each kernel's decode rows have constants of their own, prefills share three ---

constexpr std::size_t kPerKernel = 5;
constexpr std::size_t kPrefillFeatures = 3;

PartRow lora_row(const StepSample& step) {
  const LoraWork work = lora_work(step.kernel, step.shape);
  PartRow row;
  for (const auto& kernel : kernels::kLoraKinds) {
    const double own = kernel.kind == step.kernel ? 1 : 0;
    row.features.insert(row.features.end(), {own, own * work.rows, own * work.measure,
                                             own * work.adapters, own * work.adapter_ranks});
  }
  row.features.insert(row.features.end(),
                      {work.prefill_rows, work.prefill_rank_rows, work.prefill_adapter_ranks});
  row.value = step.lora_us;
  return row;
}

void fit_lora(const std::vector<StepSample>& steps, CalibrationFit* fit) {
  std::vector<PartRow> rows;
  std::vector<LoraKernel> used;
  for (const StepSample& step : steps) {
    if (step.exec != Exec::kUnmerged || step.shape.lora_tokens == 0) continue;
    rows.push_back(lora_row(step));
    used.push_back(step.kernel);
  }
  FittedConstants& c = fit->fitted;
  const PartFit part = fit_part("lora", rows, c.lora.size() * kPerKernel + kPrefillFeatures);
  for (std::size_t i = 0; i < c.lora.size(); ++i) {
    const double* k = part.coefficients.data() + i * kPerKernel;
    c.lora[i] = FittedLora{k[0], k[1], k[2], k[3], k[4]};
  }
  const double* prefill = part.coefficients.data() + c.lora.size() * kPerKernel;
  c.lora_prefill_token_us = prefill[0];
  c.lora_prefill_rank_token_us = prefill[1];
  c.lora_prefill_adapter_rank_us = prefill[2];
  fit->quality.push_back(part.quality);
  for (const auto& kernel : kernels::kLoraKinds) {  // each kernel's own rows, for the report
    std::vector<double> measured, predicted;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (used[i] != kernel.kind) continue;
      measured.push_back(rows[i].value);
      predicted.push_back(predict(rows[i], part.coefficients));
    }
    FitQuality quality = quality_of(std::string("lora ") + kernel.name, measured, predicted);
    quality.median_error = quality.p90_error = kNaN;  // held out over all kernels together
    if (quality.rows > 0) fit->quality.push_back(quality);
  }
}

// --- host and copies ---

// The twin's host time is all that a step takes beside its parts; the paper's K1..K3 are of the
// scheduler alone.
void fit_scheduler(const CalibrationSamples& samples, CalibrationFit* fit) {
  std::vector<PartRow> host, paper;
  for (const SchedulerSample& s : samples.scheduler) {
    host.push_back({{1, s.requests, s.pending, s.pending_by_share}, s.host_us});
    paper.push_back({{s.requests, s.pending, s.pending_by_share}, s.us});
  }
  const PartFit part = fit_part("host", host, 4);
  FittedConstants& c = fit->fitted;
  c.k0_us = part.coefficients[0];
  c.k1_us = part.coefficients[1];
  c.k2_us = part.coefficients[2];
  c.k3_us = part.coefficients[3];
  fit->quality.push_back(part.quality);
  const PartFit scheduler = fit_part("placement K1..K3", paper, 3, Weigh::kAbsolute);
  fit->placement.k1_us = scheduler.coefficients[0];
  fit->placement.k2_us = scheduler.coefficients[1];
  fit->placement.k3_us = scheduler.coefficients[2];
  fit->quality.push_back(scheduler.quality);
}

void fit_copy(const std::vector<CopySample>& copies, CopyKind kind, const std::string& part,
              double* latency_us, double* bytes_per_s, CalibrationFit* fit) {
  std::vector<PartRow> rows;
  for (const CopySample& copy : copies) {
    if (copy.kind == kind) rows.push_back({{1, real(copy.bytes) / kUsPerSecond}, copy.us});
  }
  if (rows.empty()) {  // the engine has none: instant
    *latency_us = 0;
    *bytes_per_s = 1e15;
    return;
  }
  const PartFit result = fit_part(part, rows, 2);
  *latency_us = result.coefficients[0];
  // us per MB = 1e-6 s / 1e6 bytes.
  *bytes_per_s = result.coefficients[1] > 0 ? 1e12 / result.coefficients[1] : 1e15;
  *bytes_per_s = std::min(*bytes_per_s, 1e15);
  fit->quality.push_back(result.quality);
}

void fit_merges(const std::vector<MergeSample>& merges, CalibrationFit* fit) {
  std::vector<PartRow> rows;
  std::vector<double> unmerges;
  for (const MergeSample& merge : merges) {
    if (merge.rank == 0) {
      unmerges.push_back(merge.us);
    } else {
      rows.push_back({{1, static_cast<double>(merge.rank)}, merge.us});
    }
  }
  if (!unmerges.empty()) fit->fitted.unmerge_us = quantile(unmerges, 0.5);
  if (rows.empty()) return;
  const PartFit part = fit_part("merge", rows, 2);
  fit->fitted.merge_us = part.coefficients[0];
  fit->fitted.merge_rank_us = part.coefficients[1];
  fit->quality.push_back(part.quality);
}

// --- the papers' own models ---

bool is_decode(const StepSample& step) {
  return step.shape.prefill_tokens == 0 && step.exec == Exec::kUnmerged;
}

std::int64_t context_of(const StepSample& step) {
  return step.shape.decode_context / step.shape.decode_requests;
}

// The papers' models know no context: they are fitted at the length that most decodes have.
std::int64_t common_context(const std::vector<StepSample>& steps) {
  std::map<std::int64_t, int> counts;
  for (const StepSample& step : steps) {
    if (is_decode(step)) ++counts[context_of(step)];
  }
  const auto most = std::max_element(counts.begin(), counts.end(),
                                     [](auto& a, auto& b) { return a.second < b.second; });
  return most == counts.end() ? 0 : most->first;
}

// K4, K5 from decodes without adapters; K6, K7 from what adapters multiply that by (Fig. 4, 5).
void fit_placement(const CalibrationSamples& samples, LoraKernel kernel, CalibrationFit* fit) {
  std::vector<PartRow> backbone, factor;
  const std::int64_t context = common_context(samples.steps);
  const auto decodes = [context](const StepSample& step) {
    return is_decode(step) && context_of(step) == context;
  };
  for (const StepSample& step : samples.steps) {
    if (!decodes(step) || step.shape.lora_tokens > 0) continue;
    backbone.push_back({{real(step.shape.decode_requests), 1}, step.total_us()});
  }
  const PartFit line = fit_part("placement K4, K5", backbone, 2, Weigh::kAbsolute);
  PlacementConstants& p = fit->placement;
  p.k4_us = line.coefficients[0];
  p.k5_us = line.coefficients[1];
  fit->quality.push_back(line.quality);
  for (const StepSample& step : samples.steps) {
    if (!decodes(step) || step.shape.lora_tokens == 0 || step.kernel != kernel) continue;
    const double base = p.k4_us * real(step.shape.decode_requests) + p.k5_us;
    factor.push_back({{real(step.shape.lora_adapters), 1}, step.total_us() / base});
  }
  const PartFit overhead = fit_part("placement K6, K7", factor, 2, Weigh::kAbsolute);
  p.k6 = overhead.coefficients[0];
  p.k7 = overhead.coefficients[1];
  fit->quality.push_back(overhead.quality);
  std::map<int, std::vector<double>> loads;
  for (const CopySample& copy : samples.copies) {
    if (copy.kind == CopyKind::kHostLoad) loads[copy.rank].push_back(copy.us);
  }
  for (const auto& [rank, times] : loads) {
    const double us = quantile(times, 0.5);
    p.load_ranks.push_back(rank);
    p.load_us.push_back(p.load_us.empty() ? us : std::max(us, p.load_us.back()));
  }
}

// Full batches of adapters, distinct or not.
KernelLine fit_kernel_line(const std::vector<StepSample>& steps, LoraKernel kernel) {
  const std::int64_t context = common_context(steps);
  LeastSquares problem(2);
  std::vector<double> work, measured, predicted, lora, lora_predicted;
  LeastSquares lora_problem(2);
  for (const StepSample& step : steps) {
    if (!is_decode(step) || step.kernel != kernel || context_of(step) != context) continue;
    if (step.shape.lora_decode_rows == 0) continue;
    if (step.shape.lora_decode_rows != step.shape.decode_requests) continue;
    work.push_back(lora_work(kernel, step.shape).measure);
    measured.push_back(step.total_us());
    lora.push_back(step.lora_us);
    problem.add({work.back(), 1}, measured.back(), 1);
    lora_problem.add({work.back(), 1}, lora.back(), 1);
  }
  KernelLine line;
  if (work.empty()) return line;
  const std::vector<double> step = problem.solve(), part = lora_problem.solve();
  line.alpha_us = step[0];
  line.beta_us = step[1];
  line.lora_alpha_us = part[0];
  line.lora_beta_us = part[1];
  for (const double w : work) {
    predicted.push_back(line.alpha_us * w + line.beta_us);
    lora_predicted.push_back(line.lora_alpha_us * w + line.lora_beta_us);
  }
  line.r2 = r_squared(measured, predicted);
  line.lora_r2 = r_squared(lora, lora_predicted);
  line.rows = work.size();
  return line;
}

// The whole step, by the model as the twin uses it.
void judge_steps(const std::vector<StepSample>& steps, CalibrationFit* fit) {
  FittedConstants without_host = fit->fitted;
  without_host.k0_us = without_host.k1_us = without_host.k2_us = without_host.k3_us = 0;
  const FittedCostModel model(without_host);
  std::vector<double> measured, predicted;
  for (const StepSample& step : steps) {
    measured.push_back(step.total_us());
    predicted.push_back(
        static_cast<double>(model.step(step.shape, step.exec, step.kernel).total()) / kNsPerUs);
  }
  fit->quality.insert(fit->quality.begin(), quality_of("whole step", measured, predicted));
}

int chunk_rows_of(const std::vector<CoreSample>& cores, const FittedConstants& fitted) {
  if (cores.empty()) return 0;
  std::vector<double> rows, core_us;
  for (const CoreSample& core : cores) {
    rows.push_back(core.rows);
    core_us.push_back(core.us);
  }
  int chunk = 1;
  for (; chunk < cores.back().rows; ++chunk) {
    const double next = chunk + 1;
    const double device_us =
        cores.front().share * interpolate(fitted.token_knots, fitted.dense_us, next);
    if (interpolate(rows, core_us, next) > device_us) break;
  }
  return chunk;
}

}  // namespace

CalibrationFit fit_calibration(const CalibrationSamples& samples) {
  CalibrationFit fit;
  fit_dense(samples.steps, &fit);
  fit_attention(samples.steps, &fit);
  fit_lora(samples.steps, &fit);
  fit_scheduler(samples, &fit);
  FittedConstants& c = fit.fitted;
  fit_copy(samples.copies, CopyKind::kHostLoad, "load from host", &c.load_latency_us,
           &c.load_bytes_per_s, &fit);
  fit_copy(samples.copies, CopyKind::kDiskLoad, "load from disk", &c.disk_latency_us,
           &c.disk_bytes_per_s, &fit);
  fit_copy(samples.copies, CopyKind::kSwapOut, "swap out", &c.swap_out_latency_us,
           &c.swap_out_bytes_per_s, &fit);
  fit_merges(samples.merges, &fit);
  judge_steps(samples.steps, &fit);
  fit_placement(samples, LoraKernel::kSgmv, &fit);
  fit.bgmv = fit_kernel_line(samples.steps, LoraKernel::kBgmv);
  fit.mbgmv = fit_kernel_line(samples.steps, LoraKernel::kMbgmv);
  fit.chunk_rows = chunk_rows_of(samples.cores, fit.fitted);
  return fit;
}

}  // namespace servelab
