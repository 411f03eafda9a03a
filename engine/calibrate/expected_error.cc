#include "engine/calibrate/expected_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/calibrate/validate.h"
#include "engine/run/point.h"

namespace servelab {
namespace {

constexpr std::size_t kMostRuns = 24;

RowFit scaled(RowFit fit, const std::vector<RowTerm>& terms, double factor) {
  for (const RowTerm term : terms) fit.us[static_cast<std::size_t>(term)] *= factor;
  return fit;
}

// At most kMostRuns, evenly spaced.
std::vector<SweepPosition> positions_of(const Spec& spec, const MeasuredRows& runs) {
  std::vector<SweepPosition> all;
  for (const MeasuredRow& row : runs.rows) {
    if (!row.step && !row.measured.out_of_memory) all.push_back(position_of(spec, row));
  }
  if (all.empty()) all.push_back(position_of(spec, {}));
  const std::size_t stride = (all.size() + kMostRuns - 1) / kMostRuns;
  std::vector<SweepPosition> some;
  for (std::size_t i = stride / 2; i < all.size(); i += stride) some.push_back(all[i]);
  return some;
}

}  // namespace

Doubt doubt_of(const RowFit& fit, const TermValues* elsewhere) {
  Doubt doubt;
  doubt.rows = 2 * fit.fold_error / 100;
  if (elsewhere == nullptr || fit.taken_over.empty()) return doubt;
  double squares = 0, shares = 0;
  for (const RowTerm term : fit.kept) {
    if (!(at(fit.us, term) > 0) || !(at(*elsewhere, term) > 0)) continue;
    const double ratio = std::log(at(fit.us, term) / at(*elsewhere, term));
    squares += at(fit.shares, term) * ratio * ratio;
    shares += at(fit.shares, term);
  }
  doubt.elsewhere = shares > 0 ? std::exp(std::sqrt(squares / shares)) - 1 : 1;
  return doubt;
}

ExpectedErrors expected_errors(const Spec& spec, const MeasuredRows& runs,
                               const std::string& profile, const RowFit& fit, const Doubt& doubt,
                               const std::string& data_dir) {
  ExpectedErrors errors;
  errors.doubt = doubt;
  const std::vector<SweepPosition> positions = positions_of(spec, runs);
  const HardwareProfile hardware = load_hardware_profile(profile, hardware_in(spec.library));
  for (const SweepPosition& position : positions) {
    PointSettings settings =
        resolve_point(spec, position, spec.techniques.front(), spec.seeds.front());
    const Workload workload = build_point_workload(settings, data_dir).workload;
    const auto run = [&](const RowFit& changed) {
      settings.hardware = hardware;
      put_constants(changed, &settings.hardware.fitted);
      return outcome_of(run_point(settings, workload).summary);
    };
    const Outcome base = run(fit);
    if (!std::isfinite(base.itl_s)) continue;  // it does not start, or nothing has two tokens
    double throughput = 0, itl = 0, ttft = 0;
    const auto add = [&](const Outcome& other) {
      const auto square = [](double a, double b) {
        const double error = symmetric_error(a, b);
        return std::isfinite(error) ? error * error : 0;
      };
      throughput += square(base.tokens_per_s, other.tokens_per_s);
      itl += square(base.itl_s, other.itl_s);
      ttft += square(base.ttft_s, other.ttft_s);
    };
    add(run(scaled(fit, fit.kept, 1 + doubt.rows)));
    for (const RowTerm term : fit.taken_over) add(run(scaled(fit, {term}, 1 + doubt.elsewhere)));
    ++errors.runs;
    errors.throughput += std::sqrt(throughput);
    errors.itl += std::sqrt(itl);
    errors.ttft += std::sqrt(ttft);
  }
  const auto count = static_cast<double>(errors.runs);
  errors.throughput /= count;
  errors.itl /= count;
  errors.ttft /= count;
  return errors;
}

std::string text(const ExpectedErrors& errors) {
  if (errors.runs == 0) return "no expected error: no such run decodes anything\n";
  std::string why = fmt::format("terms +{:.0f} %", 100 * errors.doubt.rows);
  if (errors.doubt.elsewhere > 0) {
    why += fmt::format(", those taken over +{:.0f} %", 100 * errors.doubt.elsewhere);
  }
  return fmt::format(
      "expected SMAPE of whole runs, of which none was measured: throughput {:.1f}, ITL {:.1f}, "
      "TTFT {:.1f} % ({} runs of the twin; {})\n",
      errors.throughput, errors.itl, errors.ttft, errors.runs, why);
}

}  // namespace servelab
