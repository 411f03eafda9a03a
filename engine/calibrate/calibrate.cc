#include "engine/calibrate/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>

#include "engine/backend/cost/cost_model.h"
#include "engine/backend/device/thread_team.h"
#include "engine/calibrate/engine_calibration.h"
#include "engine/calibrate/profile_file.h"
#include "engine/core/check.h"
#include "engine/record/atomic_file.h"
#include "engine/record/build_id.h"
#include "engine/record/context.h"
#include "engine/run/processor_share.h"
#include "engine/run/real_run.h"
#include "engine/spec/library.h"

namespace servelab {
namespace {

constexpr double kMostLoss = 0.05;   // of the processor time, to others
constexpr double kLongStepUs = 2e5;  // measured less often

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

template <class T>
double median_of(const std::vector<T>& samples, double T::*field) {
  std::vector<double> values;
  for (const T& sample : samples) values.push_back(sample.*field);
  return median(std::move(values));
}

StepSample median_step(const std::vector<StepSample>& repeats) {
  StepSample sample = repeats.front();
  sample.attention_us = median_of(repeats, &StepSample::attention_us);
  sample.lora_us = median_of(repeats, &StepSample::lora_us);
  // The parts' medians need not come from one repeat: the whole step's does.
  std::vector<double> totals;
  for (const StepSample& repeat : repeats) totals.push_back(repeat.total_us());
  sample.dense_us = std::max(0.0, median(std::move(totals)) - sample.attention_us - sample.lora_us);
  return sample;
}

class Measurement {
 public:
  Measurement(CalibrationTarget* target, bool quick, const std::atomic<int>* stop)
      : target_(target), stop_(stop), rounds_(quick ? 3 : 5), quick_(quick) {}

  CalibrationSamples run() {
    steps();
    copies();
    merges();
    cores();
    for (const PlannedSchedule& schedule : planned_schedules(quick_)) {
      check_stop();
      samples_.scheduler.push_back(target_->schedule(schedule));
    }
    return std::move(samples_);
  }

 private:
  void check_stop() const {
    if (stop_ != nullptr && stop_->load() != 0) {
      throw SpecError("calibration: interrupted; nothing was written");
    }
  }

  void steps() {
    const std::vector<PlannedStep> plan = planned_steps(quick_);
    std::vector<std::vector<StepSample>> repeats(plan.size());
    for (const PlannedStep& step : plan) {  // warm: adapters packed, caches touched
      check_stop();
      if (step.tokens() <= kMostSequences) target_->step(step);
    }
    for (int round = 0; round < rounds_; ++round) {
      for (std::size_t i = 0; i < plan.size(); ++i) {
        check_stop();
        const bool is_long = !repeats[i].empty() && repeats[i].front().total_us() > kLongStepUs;
        if (is_long && round % 3 != 0) continue;
        repeats[i].push_back(target_->step(plan[i]));
      }
    }
    for (const auto& repeat : repeats) samples_.steps.push_back(median_step(repeat));
  }

  void repeat_copies(std::size_t count, const std::function<CopySample(std::size_t)>& measure_one) {
    std::vector<std::vector<CopySample>> repeats(count);
    for (int round = 0; round < rounds_; ++round) {
      for (std::size_t i = 0; i < count; ++i) {
        check_stop();
        repeats[i].push_back(measure_one(i));
      }
    }
    for (const auto& repeat : repeats) {
      samples_.copies.push_back(repeat.front());
      samples_.copies.back().us = median_of(repeat, &CopySample::us);
    }
  }

  void copies() {
    const std::vector<int>& ranks = calibrated_ranks();
    for (const CopyKind kind : {CopyKind::kHostLoad, CopyKind::kDiskLoad}) {
      repeat_copies(ranks.size(), [&](std::size_t i) { return target_->load(kind, ranks[i]); });
    }
    const std::vector<int> tokens = {16, 64, 256, kMostContext};
    for (const CopyKind kind : {CopyKind::kSwapIn, CopyKind::kSwapOut}) {
      repeat_copies(tokens.size(), [&](std::size_t i) { return target_->swap(kind, tokens[i]); });
    }
  }

  void merges() {
    const std::vector<int>& ranks = calibrated_ranks();
    std::vector<std::vector<MergeSample>> merging(ranks.size()), unmerging(ranks.size());
    for (int round = 0; round < rounds_; ++round) {
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        check_stop();
        const std::vector<MergeSample> both = target_->merge(ranks[i]);
        merging[i].push_back(both.front());
        unmerging[i].push_back(both.back());
      }
    }
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      samples_.merges.push_back({ranks[i], median_of(merging[i], &MergeSample::us)});
      samples_.merges.push_back({0, median_of(unmerging[i], &MergeSample::us)});
    }
  }

  void cores() {
    const std::vector<int>& rows = core_rows();
    std::vector<std::vector<CoreSample>> repeats(rows.size());
    for (int round = 0; round < rounds_; ++round) {
      for (std::size_t i = 0; i < rows.size(); ++i) {
        check_stop();
        repeats[i].push_back(target_->core(rows[i]));
      }
    }
    for (const auto& repeat : repeats) {
      samples_.cores.push_back(repeat.front());
      samples_.cores.back().us = median_of(repeat, &CoreSample::us);
    }
  }

  CalibrationTarget* target_;
  const std::atomic<int>* stop_;
  int rounds_;
  bool quick_;
  CalibrationSamples samples_;
};

// "<processor>, 2 threads" from the run's context.
std::string machine_name() {
  const ConfigNode context = parse_yaml(context_json({}, 0), "context");
  const ConfigNode* processor = context.find("processor");
  return processor != nullptr ? processor->scalar : "unknown processor";
}

// The device that was measured: this machine's processors or its first accelerator.
DeviceFacts facts_of(const Accelerator& engine, int threads) {
  DeviceFacts facts = engine.facts(0);
  if (!facts.name.empty()) return facts;
  facts.name = machine_name();
  facts.multiprocessors = threads;
  return facts;
}

// The data sheet's place is taken by what the model's own steps reached.
HardwareProfile profile_of(const ModelConfig& model, const CalibrateOptions& options, int threads,
                           const std::string& name, const CalibrationFit& fit) {
  const DeviceFacts facts = facts_of(*find_accelerator(options.backend), threads);
  HardwareProfile profile;
  profile.name = name;
  profile.generation = facts.generation;
  profile.memory_bytes = facts.memory;
  const FittedConstants& c = fit.fitted;
  const std::int64_t tables = model.tied_embeddings ? 1 : 2;  // embedding and head
  const double body = static_cast<double>(model.parameters() - tables * model.vocab * model.hidden);
  const auto largest = c.token_knots.size() - 1;
  // On a busy machine the fit may leave next to no time to a knot: no more than a profile may say.
  profile.peak_flops =
      std::min(1e18, 2 * body * c.token_knots[largest] / (c.dense_us[largest] * 1e-6));
  profile.memory_bytes_per_s =
      std::min(1e15, body * model.bytes_per_weight / (c.dense_us.front() * 1e-6));
  profile.sm_count = facts.multiprocessors;
  profile.l2_bytes = facts.l2;
  profile.host_link_bytes_per_s = std::max(1e6, c.load_bytes_per_s);
  profile.host_link_fraction = 1;
  profile.host_link_latency_us = c.load_latency_us;
  profile.source =
      "servelab calibrate --backend " + options.backend + " on " + facts.name +
      "; peak_flops and memory_bytes_per_s are what the model's dense layers reached at the most "
      "and the fewest tokens; memory_bytes is what the engine may use";
  profile.fitted = c;
  profile.fitted.model = model.name;
  profile.fitted.dtype = kernels::name(element_type(options.backend, RuntimeSection{}, model));
  profile.fitted.lora_targets = options.lora;
  profile.fitted.threads = threads;
  profile.fitted.machine = facts.name;
  profile.host_lora.chunk_rows = fit.chunk_rows;
  return profile;
}

std::string slug(std::string text) {
  for (char& c : text) {
    c = std::isalnum(static_cast<unsigned char>(c)) ? static_cast<char>(std::tolower(c)) : '-';
  }
  return text;
}

void save_text(const std::filesystem::path& path, const std::string& text) {
  save_atomically(path.string(), std::as_bytes(std::span(text)));
  fmt::print("wrote {}\n", path.string());
}

// heading of every file: how it came to be.
std::string heading_of(const ModelConfig& model, const CalibrateOptions& options, int threads,
                       double wall_s, double loss) {
  return fmt::format(
      "Measured by servelab calibrate --backend {} --model {}{} --threads {} in {:.0f} s, build "
      "{}.\n"
      "The run did not get {:.0f} % of the processor time that it asked for.\n"
      "{}. Model {} ({} parameters).",
      options.backend, options.model, options.quick ? " --quick" : "", threads, wall_s, build_id(),
      100 * loss, machine_name(), model.name, model.parameters());
}

}  // namespace

CalibrationSamples measure(CalibrationTarget* target, bool quick, const std::atomic<int>* stop) {
  return Measurement(target, quick, stop).run();
}

void calibrate(const CalibrateOptions& options) {
  const auto engine = find_accelerator(options.backend);
  engine->check_devices(1, 1);
  const Library library(options.experiments);
  const ModelConfig model =
      load_model_config(library.find("model", options.model, SourceMark{"--model", 0, 0}));
  if (model.max_context_tokens < kMostPrefill) {
    throw SpecError("--model " + options.model + ": a context of " +
                    std::to_string(model.max_context_tokens) + " tokens is too short; needs " +
                    std::to_string(kMostPrefill));
  }
  const int threads =
      options.threads > 0 ? options.threads : static_cast<int>(usable_cores().size());
  const std::string name = slug(engine->profile_stem(threads)) + "-" + slug(model.name);
  const std::filesystem::path out =
      options.out.empty() ? "results/calibration/" + name + ".yaml" : options.out;
  if (out.extension() != ".yaml") throw SpecError("--out " + out.string() + " must end in .yaml");
  if (!out.parent_path().empty()) std::filesystem::create_directories(out.parent_path());

  const std::optional<ProcessorTimes> began = processor_times();
  const auto started = std::chrono::steady_clock::now();
  const auto target =
      make_calibration(options.backend, model, options.lora, threads, options.quick);
  const CalibrationSamples samples = measure(target.get(), options.quick, options.stop);
  const CalibrationFit fit = fit_calibration(samples);
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - started;
  const std::optional<ProcessorTimes> ended = processor_times();

  fmt::print("{}", fit_table(samples, fit));
  const double loss = began && ended ? processor_share(*began, *ended).loss() : 0;
  if (loss > kMostLoss) {
    fmt::print(
        "warning: others took {:.0f} % of the processor time that it asked for; calibrate again on "
        "an idle machine\n",
        100 * loss);
  }
  const std::string heading = heading_of(model, options, threads, wall.count(), loss);
  const std::string stem = out.stem().string();
  save_text(out,
            profile_yaml(profile_of(model, options, threads, stem, fit), fit.placement, heading));
  save_text(out.parent_path() / (stem + "-placement.yaml"), placement_yaml(stem, heading));
  save_text(out.parent_path() / (stem + ".csv"), samples_csv(samples, fit));
}

}  // namespace servelab
