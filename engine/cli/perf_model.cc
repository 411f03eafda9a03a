#include "engine/cli/perf_model.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <utility>

#include "baselines/shared/kernel_param.h"
#include "engine/calibrate/part_fit.h"
#include "engine/core/config_node.h"
#include "engine/core/units.h"
#include "engine/core/yaml_writer.h"
#include "engine/record/atomic_file.h"
#include "engine/record/hdf5_reader.h"
#include "engine/record/point_file.h"
#include "engine/spec/spec_text.h"
#include "engine/workload/csv.h"

namespace servelab {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostRequests = 1'000'000;
constexpr int kMostRank = 1 << 16;
constexpr double kMostLatencyMs = 1e6;
constexpr std::size_t kFewestPoints = 3;  // fewer are on their line by chance
const std::vector<std::string> kColumns = {"kernel", "phase", "ranks", "latency_ms"};
const std::vector<std::string> kPhases = {"prefill", "decode"};

bool is_among(const std::string& name, const std::vector<std::string>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void check_known(const CsvReader& csv, const char* what, const std::string& name,
                 const std::vector<std::string>& known) {
  if (is_among(name, known)) return;
  csv.fail(std::string("unknown ") + what + " " + in_quotes(name) + "; " + suggest(name, known));
}

std::vector<PerfSample> read_csv(const std::string& path) {
  CsvReader csv(path, "the columns are kernel, phase, ranks, latency_ms");
  for (const std::string& column : csv.columns()) check_known(csv, "column", column, kColumns);
  const std::size_t kernel = csv.column("kernel"), phase = csv.column("phase");
  const std::size_t ranks = csv.column("ranks"), latency = csv.column("latency_ms");
  std::vector<PerfSample> samples;
  while (csv.next()) {
    PerfSample sample;
    sample.kernel = csv.text(kernel);
    sample.phase = csv.text(phase);
    check_known(csv, "kernel", sample.kernel, lora_kernel_names());
    check_known(csv, "phase", sample.phase, kPhases);
    sample.ranks = parse_ranks(csv.text(ranks), fmt::format("{}:{}", path, csv.line_number()));
    sample.latency_ms = csv.non_negative(latency);
    if (sample.latency_ms > kMostLatencyMs)
      csv.fail(fmt::format("latency_ms is over {} ms", kMostLatencyMs));
    samples.push_back(std::move(sample));
  }
  return samples;
}

// The kernel of a point's effective settings; empty where its technique has none.
std::string kernel_of(const Hdf5Reader& point, const std::string& path) {
  const ConfigNode effective = parse_yaml(point.texts("/spec/effective").at(0), path);
  const ConfigNode* node = &effective;
  for (const char* key : {"technique", "with", "kernel"}) {
    if (node != nullptr) node = node->find(key);
  }
  return node == nullptr ? "" : node->scalar;
}

// What a point's requests say of its steps.
struct PointBatches {
  Ranks prefill;  // of the most requests that were prefilled in one step
  double prefill_ms = 0;
  Ranks decode;  // of all requests
};

// On a real engine the first request starts a step before the others are there; so all but a few
// steps, not all, are of the whole batch.
PointBatches batches_of(const Hdf5Reader& point, const std::string& path) {
  const std::vector<std::int64_t> start = point.integers("/requests/prefill_start");
  const std::vector<std::int64_t> first = point.integers("/requests/first_token");
  const std::vector<std::int64_t> last = point.integers("/requests/last_token");
  const std::vector<std::int64_t> rank = point.integers("/requests/rank");
  PointBatches batches;
  std::map<std::pair<std::int64_t, std::int64_t>, Ranks> groups;
  for (std::size_t i = 0; i < start.size(); ++i) {
    if (rank.at(i) <= 0) continue;
    const auto own = static_cast<int>(rank[i]);
    batches.decode = batches.decode.with(own);
    Ranks& group = groups[{start[i], first.at(i)}];
    group = group.with(own);
    if (group.requests <= batches.prefill.requests) continue;
    batches.prefill = group;
    batches.prefill_ms = to_seconds(first[i] - start[i]) * 1e3;
  }
  const auto [first_begin, first_end] = std::minmax_element(first.begin(), first.end());
  const auto [last_begin, last_end] = std::minmax_element(last.begin(), last.end());
  const bool is_one = batches.decode.requests > 0 && *first_begin >= 0 &&
                      2 * (*last_begin - *first_end) >= *last_end - *first_begin;
  if (is_one) return batches;
  throw SpecError(path +
                  ": its requests did not run as one batch; a model is fitted to runs with " +
                  "arrivals: {process: closed}, requests within engine.max_batch, lengths fixed");
}

void add_point(const std::string& path, const std::string& key, std::vector<PerfSample>* samples) {
  std::string damage;
  const std::optional<StoredPoint> stored = read_point(path, key, &damage);
  if (!stored) {
    throw SpecError(path + ": " + (damage.empty() ? "is absent" : damage) + "; run the spec again");
  }
  const Hdf5Reader point(path);
  const std::string kernel = kernel_of(point, path);
  if (kernel.empty()) return;
  const PointBatches batches = batches_of(point, path);
  const double decode_ms = value_of(stored->summary, "itl_p50_s") * 1e3;
  samples->push_back({kernel, "prefill", batches.prefill, batches.prefill_ms});
  if (decode_ms > 0) samples->push_back({kernel, "decode", batches.decode, decode_ms});
}

std::vector<PerfSample> read_results(const std::string& path) {
  const auto column = [&](const char* name) {  // no other file while this one is open
    return Hdf5Reader(path).texts(std::string("/columns/") + name);
  };
  const std::vector<std::string> files = column("file"), keys = column("key");
  const std::vector<std::string> status = column("status");
  std::vector<PerfSample> samples;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (status.at(i) != "VALID") continue;
    add_point((fs::path(path).parent_path() / files[i]).string(), keys.at(i), &samples);
  }
  return samples;
}

FittedRankLine fit_samples(const std::vector<PerfSample>& samples, const std::string& what) {
  const RankLoad load = load_of_kernel(samples.front().kernel);
  std::vector<RankPoint> points;
  std::vector<double> measured, predicted;
  for (const PerfSample& sample : samples) {
    points.push_back({load_of(load, sample.ranks), sample.latency_ms});
  }
  const std::optional<RankLine> line = fit_line(points);
  if (points.size() < kFewestPoints || !line) {
    throw SpecError(
        fmt::format("{}: {} points with {} load{}; a line needs {} points and two "
                    "loads: measure more batches",
                    what, points.size(), line ? "several" : "one", line ? "s" : "", kFewestPoints));
  }
  for (const RankPoint& point : points) {
    measured.push_back(point.latency_ms);
    predicted.push_back(line->alpha_ms * point.load + line->beta_ms);
  }
  if (!(line->alpha_ms >= kLeastAlphaMs)) {
    throw SpecError(
        fmt::format("{}: the latency does not grow with the load (slope {:.6g} ms); "
                    "measure again on a quiet machine, and check whose rows these are",
                    what, line->alpha_ms));
  }
  return {*line, r_squared(measured, predicted), static_cast<std::int64_t>(points.size())};
}

ConfigNode number_node(double value) { return ConfigNode::of(fmt::format("{}", value), false); }

ConfigNode line_node(const FittedRankLine& fitted) {
  ConfigNode node = ConfigNode::map();
  node.set("alpha_ms", number_node(fitted.line.alpha_ms));
  node.set("beta_ms", number_node(fitted.line.beta_ms));
  node.set("r2", number_node(fitted.r2));
  node.set("points", ConfigNode::of(std::to_string(fitted.points), false));
  return node;
}

void fit(const PerfModelArguments& arguments) {
  std::vector<PerfSample> samples;
  std::string names;
  for (const std::string& source : arguments.sources) {
    const std::vector<PerfSample> more = read_perf_samples(source);
    samples.insert(samples.end(), more.begin(), more.end());
    names += (names.empty() ? "" : ", ") + source;
  }
  const std::string yaml = perf_model_yaml(fit_perf_model(samples, arguments.kernel, names), names);
  if (arguments.out.empty()) {
    fmt::print("{}", yaml);
  } else {
    save_atomically(arguments.out, std::as_bytes(std::span(yaml)));
  }
}

void predict(const PerfModelArguments& arguments) {
  if (arguments.sources.size() != 1 || arguments.ranks.empty()) {
    throw SpecError("servelab perf-model predict needs one FILE and --ranks, such as 8,16,2x64");
  }
  const std::string& path = arguments.sources.front();
  std::vector<KernelPerf> models = read_perf_model(path);
  if (!arguments.kernel.empty()) models = {perf_of(models, arguments.kernel, path)};
  const Ranks ranks = parse_ranks(arguments.ranks, "--ranks");
  for (const KernelPerf& perf : models) {
    const RankModel model{load_of_kernel(perf.kernel), {}, {}};
    for (const auto& [phase, line] :
         {std::pair{"prefill", perf.prefill}, {"decode", perf.decode}}) {
      if (!line) continue;
      fmt::print("{} {} {:.3f} ms at load {} (R2 {:.3f})\n", perf.kernel, phase,
                 latency_ms(model, line->line, ranks), load_of(model.load, ranks), line->r2);
    }
  }
}

}  // namespace

Ranks parse_ranks(std::string_view text, const std::string& where) {
  Ranks ranks;
  constexpr std::string_view kBetween = " ,\t";
  for (std::size_t at = 0; (at = text.find_first_not_of(kBetween, at)) != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    const std::string_view word = text.substr(at, end - at);
    const std::size_t x = word.find('x');
    const std::string_view rank_text = x == std::string_view::npos ? word : word.substr(x + 1);
    const auto number = [](std::string_view digits, std::int64_t most) -> std::int64_t {
      std::int64_t value = 0;
      const auto [stop, error] = std::from_chars(digits.begin(), digits.end(), value);
      return error == std::errc() && stop == digits.end() && value <= most ? value : 0;
    };
    const std::int64_t count =
        x == std::string_view::npos ? 1 : number(word.substr(0, x), kMostRequests);
    const std::int64_t rank = number(rank_text, kMostRank);
    if (count < 1 || rank < 1 || ranks.requests + count > kMostRequests) {
      throw SpecError(
          fmt::format("{}: {} is not a rank from 1 to {}, or a count and a rank such as "
                      "24x32 ({} requests at most)",
                      where, in_quotes(std::string(word.substr(0, 40))), kMostRank, kMostRequests));
    }
    ranks = ranks.with(Ranks{count, count * rank, static_cast<int>(rank)});
    at = end;
  }
  if (ranks.requests == 0) throw SpecError(where + ": no ranks; name them, such as 8 16 2x64");
  return ranks;
}

std::vector<PerfSample> read_perf_samples(const std::string& source) {
  std::error_code ignored;
  if (fs::is_directory(source, ignored)) return read_perf_samples(source + "/collected.h5");
  return source.ends_with(".h5") ? read_results(source) : read_csv(source);
}

std::vector<KernelPerf> fit_perf_model(const std::vector<PerfSample>& samples,
                                       const std::string& kernel, const std::string& source) {
  std::vector<KernelPerf> models;
  for (const std::string& name : lora_kernel_names()) {
    KernelPerf perf{name, {}, {}};
    for (const std::string& phase : kPhases) {
      std::vector<PerfSample> own;
      std::copy_if(samples.begin(), samples.end(), std::back_inserter(own), [&](const auto& s) {
        return s.kernel == name && s.phase == phase && (kernel.empty() || kernel == name);
      });
      if (own.empty()) continue;
      (phase == "prefill" ? perf.prefill : perf.decode) =
          fit_samples(own, source + ": " + name + " " + phase);
    }
    if (perf.prefill || perf.decode) models.push_back(perf);
  }
  if (!models.empty()) return models;
  std::vector<std::string> found;
  for (const PerfSample& sample : samples) {
    if (!is_among(sample.kernel, found)) found.push_back(sample.kernel);
  }
  if (found.empty()) throw SpecError(source + ": holds no batch under a LoRA kernel");
  throw SpecError(source + ": no batch under kernel " + in_quotes(kernel) + "; " +
                  suggest(kernel, found));
}

std::string perf_model_yaml(const std::vector<KernelPerf>& models, const std::string& source) {
  ConfigNode file = ConfigNode::map();
  for (const KernelPerf& perf : models) {
    ConfigNode phases = ConfigNode::map();
    if (perf.prefill) phases.set("prefill", line_node(*perf.prefill));
    if (perf.decode) phases.set("decode", line_node(*perf.decode));
    file.set(perf.kernel, phases);
  }
  std::string heading = "# Latency of a batch, alpha_ms x load + beta_ms, fitted to " + source;
  std::replace(heading.begin(), heading.end(), '\n', ' ');
  return heading + "\n" + write_yaml(file);
}

CLI::App* declare_perf_model(CLI::App* app, PerfModelArguments* arguments) {
  CLI::App* command = app->add_subcommand(
      "perf-model",
      "latency of a batch by its LoRA ranks: fit SOURCE..., or predict FILE --ranks LIST");
  command->allow_extras();
  command->add_option("ACTION", arguments->action, "fit or predict")->required();
  command
      ->add_option("SOURCE", arguments->sources,
                   "fit: CSV files with the columns kernel, phase (prefill or decode), ranks, "
                   "latency_ms, or results folders of specs such as caraserve/fig09; predict: what "
                   "fit wrote")
      ->required();
  command->add_option("--kernel", arguments->kernel, "this one only, such as bgmv; default: all")
      ->check(CLI::IsMember(lora_kernel_names()));
  command->add_option("--ranks", arguments->ranks, "predict: of the batch, such as 8,16,2x64");
  command->add_option("--out", arguments->out, "fit: the YAML file; default: stdout");
  return command;
}

void perf_model_command(const PerfModelArguments& arguments) {
  const bool is_fit = arguments.action == "fit";
  if (!is_fit && arguments.action != "predict") {
    throw SpecError("unknown action " + in_quotes(arguments.action) + " of servelab perf-model; " +
                    suggest(arguments.action, {"fit", "predict"}));
  }
  if (is_fit && !arguments.ranks.empty()) throw SpecError("perf-model fit takes no --ranks");
  if (!is_fit && !arguments.out.empty()) throw SpecError("perf-model predict takes no --out");
  is_fit ? fit(arguments) : predict(arguments);
}

}  // namespace servelab
