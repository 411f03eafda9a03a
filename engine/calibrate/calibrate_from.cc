#include "engine/calibrate/calibrate_from.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <numeric>
#include <optional>
#include <span>

#include "engine/calibrate/expected_error.h"
#include "engine/calibrate/profile_file.h"
#include "engine/core/check.h"
#include "engine/record/atomic_file.h"
#include "engine/run/point.h"

namespace servelab {
namespace {

constexpr double kUsPerSecond = 1e6;

std::string table(const RowFit& fit) {
  std::string text = fmt::format("{} rows; SMAPE of their ITL {:.2f} %\n", fit.rows, fit.error);
  if (fit.steps > 0 && fit.steps < fit.rows) {
    text += fmt::format("  {} single steps {:.2f} %, {} whole runs {:.2f} %\n", fit.steps,
                        fit.step_error, fit.rows - fit.steps, fit.run_error);
  }
  for (const RowTerm term : fit.kept) {
    text += fmt::format("  {:12.4f} us per {}, {:.0f} % of a row\n", at(fit.us, term),
                        kRowTerms[static_cast<std::size_t>(term)], 100 * at(fit.shares, term));
  }
  if (fit.scheduling_rows > 0) {
    text +=
        fmt::format("  {:12.4f} us per waiting request: of {} rows of scheduling, SMAPE {:.1f} %\n",
                    at(fit.us, RowTerm::kWaiting), fit.scheduling_rows, fit.scheduling_error);
  }
  for (const RowTerm term : fit.taken_over) {
    text += fmt::format("  {:12.4f} us per {}: the other profile's\n", at(fit.us, term),
                        kRowTerms[static_cast<std::size_t>(term)]);
  }
  for (const auto& [term, beside] : fit.not_told_apart) {
    text += fmt::format("             0 us per {}: these rows cannot tell it from {}\n",
                        kRowTerms[static_cast<std::size_t>(term)],
                        kRowTerms[static_cast<std::size_t>(beside)]);
  }
  text +=
      fmt::format("  SMAPE {:5.2f} % of every fifth row, by a fit to the others\n", fit.fold_error);
  for (const LeftOut& left : fit.left_out) {
    text += fmt::format("  SMAPE {:5.2f} % of rows of each {} that it was not fitted to\n",
                        left.error, left.key);
  }
  if (std::isnan(fit.load_s)) {
    text += "  loads: no measured.load_s; over the host link, as the hardware profile says\n";
  } else {
    text += fmt::format("  {:12.4f} us per load\n", fit.load_s * kUsPerSecond);
  }
  return text;
}

}  // namespace

std::string rows_csv(const std::vector<RowEquation>& equations, const RowFit& fit) {
  std::string text = "line,kind,measured_us,fitted_us,unseen_us";
  for (const char* term : kRowTerms) text += fmt::format(",{}", term);
  text += "\n";
  for (std::size_t i = 0; i < equations.size(); ++i) {
    const RowEquation& row = equations[i];
    const auto sum = [&](const TermValues& us) {
      return std::inner_product(us.begin(), us.end(), row.terms.begin(), 0.0);
    };
    text +=
        fmt::format("{},{},{:.2f},{:.2f},{:.2f}", row.line, row.is_step ? "step" : "run",
                    row.itl_s * kUsPerSecond, sum(fit.us), sum(fit.folds[i % fit.folds.size()]));
    for (std::size_t term = 0; term < fit.us.size(); ++term) {
      text += fmt::format(",{:.2f}", fit.us[term] * row.terms[term]);
    }
    text += "\n";
  }
  return text;
}

namespace {

// Where the fit goes, beside the profile.
std::string fit_path(const std::filesystem::path& out) {
  return out.parent_path() / (out.stem().string() + "_fit.csv");
}

}  // namespace

void calibrate_from(const CalibrateFromOptions& options) {
  const std::filesystem::path out = options.out;
  if (out.extension() != ".yaml") throw SpecError("--out " + options.out + " must end in .yaml");
  for (const std::string& written : {options.out, fit_path(out)}) {
    refuse_to_replace("--out", written, {options.rows, options.spec, options.expect});
  }
  MeasuredRows rows = read_measured_rows(options.rows);
  std::erase_if(rows.rows, [](const MeasuredRow& row) { return !row.is_fitted(); });
  MeasuredRows expected;
  if (!options.expect.empty()) expected = read_measured_rows(options.expect);
  const Library library(options.experiments);
  const Spec spec = load_spec(library.find_spec(options.spec), options.experiments);
  const std::vector<std::string> keys = keys_of(rows);
  std::vector<SchedulingRow> scheduling;
  for (const MeasuredRow& row : rows.rows) {
    if (!row.step || !(row.scheduling_s > 0)) continue;
    scheduling.push_back({row.step->decodes, row.step->waiting, row.scheduling_s});
  }
  std::optional<TermValues> elsewhere;
  if (!options.terms_from.empty()) {
    const HardwareProfile other = load_hardware_profile(
        library.find("hardware", options.terms_from, SourceMark{"--terms-from", 0, 0}),
        hardware_in(library));
    if (other.fitted.model.empty()) {
      throw SpecError("--terms-from " + options.terms_from + ": was not fitted to a server");
    }
    elsewhere = terms_in(other.fitted);
  }
  const std::vector<RowEquation> fitted = equations(spec, rows, options.data_dir);
  RowFit fit = fit_rows(fitted, scheduling, keys, elsewhere ? &*elsewhere : nullptr);
  double loads = 0;
  int load_rows = 0;
  for (const MeasuredRow& row : rows.rows) {
    if (std::isnan(row.load_s)) continue;
    loads += row.load_s;
    ++load_rows;
  }
  if (load_rows > 0) fit.load_s = loads / load_rows;
  fmt::print("{}", table(fit));

  const PointSettings settings =
      resolve_point(spec, position_of(spec, {}), spec.techniques.front(), spec.seeds.front());
  HardwareProfile profile = settings.hardware;
  FittedConstants constants;
  constants.model = settings.model.name;
  constants.dtype = "bf16";
  constants.lora_targets = settings.lora.targets;
  constants.threads = 1;
  constants.machine = profile.fitted.machine.empty() ? profile.name : profile.fitted.machine;
  constants.load_latency_us = profile.host_link_latency_us;
  constants.load_bytes_per_s = profile.host_link_bytes_per_s * profile.host_link_fraction;
  constants.disk_bytes_per_s = constants.load_bytes_per_s;
  constants.swap_out_latency_us = profile.host_link_latency_us;
  constants.swap_out_bytes_per_s = constants.load_bytes_per_s;
  put_constants(fit, &constants);
  profile.fitted = constants;
  profile.name = out.stem().string();
  profile.source =
      fmt::format("servelab calibrate --from {} rows of {}: SMAPE of their ITL {:.2f} %", fit.rows,
                  std::filesystem::path(options.rows).filename().string(), fit.error);
  if (!out.parent_path().empty()) std::filesystem::create_directories(out.parent_path());
  const std::string text = profile_yaml(profile, std::nullopt, table(fit));
  save_atomically(options.out, std::as_bytes(std::span(text)));
  const std::string csv = rows_csv(fitted, fit);
  const std::string csv_path = fit_path(out);
  save_atomically(csv_path, std::as_bytes(std::span(csv)));
  const Doubt doubt = doubt_of(fit, elsewhere ? &*elsewhere : nullptr);
  fmt::print("{}", servelab::text(
                       expected_errors(spec, expected, options.out, fit, doubt, options.data_dir)));
  fmt::print("wrote {} and {}; .venv/bin/python -m analysis.calibration {} draws the fit\n",
             options.out, csv_path, csv_path);
}

}  // namespace servelab
