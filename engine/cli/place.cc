#include "engine/cli/place.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>

#include "baselines/shared/adapter_packing.h"
#include "engine/cli/place_adapters.h"
#include "engine/cli/place_server.h"
#include "engine/record/atomic_file.h"
#include "engine/run/point.h"
#include "engine/spec/library.h"
#include "engine/spec/spec.h"
#include "engine/workload/csv.h"

namespace servelab {
namespace {

constexpr int kUnserved = 3;  // exit code
constexpr const char* kMethods[] = {"proposed", "proposed-fast", "proposed-lat"};
constexpr const char* kVllm = "0.8.5";

// The adapters of a spec's first position, at the rates of its workload.
std::vector<NamedAdapter> adapters_of_spec(const PlaceArguments& arguments) {
  const Library library(arguments.experiments);
  const Spec spec = load_spec(library.find_spec(arguments.spec), arguments.experiments);
  const PointSettings settings =
      resolve_point(spec, spec.positions.front(), spec.techniques.front(), spec.seeds.front());
  const BuiltWorkload built = build_point_workload(settings, arguments.data_dir);
  const ClusterSettings cluster = point_cluster(settings, built.workload);
  const DeploymentView view(cluster, built.workload);
  std::vector<NamedAdapter> adapters;
  for (std::size_t i = 0; i < built.workload.adapters.size(); ++i) {
    const Adapter& adapter = built.workload.adapters[i];
    const auto id = static_cast<AdapterId>(static_cast<std::uint32_t>(i));
    adapters.push_back({adapter.name, "", adapter.rank, view.rate(id)});
  }
  if (adapters.empty()) throw SpecError(spec.path + ": its workload has no adapters");
  return adapters;
}

void print_moves(const Packing& packing, const std::vector<int>& before,
                 const std::vector<NamedAdapter>& adapters) {
  std::vector<std::string> moves;
  for (std::size_t i = 0; i < packing.gpus.size(); ++i) {
    for (const AdapterId id : packing.gpus[i].adapters) {
      const int was = before[index(id)];
      if (was == static_cast<int>(i)) continue;
      moves.push_back(fmt::format("  {}: {} to GPU {}", adapters[index(id)].name,
                                  was < 0 ? "new," : fmt::format("GPU {}", was), i));
    }
  }
  fmt::print("{} of {} adapters move or are new{}\n{}{}", moves.size(), adapters.size(),
             moves.empty() ? "" : ":", fmt::join(moves, "\n"), moves.empty() ? "" : "\n");
}

// The named predictor, or the one of the model and hardware.
std::shared_ptr<const Predictor> choose_predictor(const PlaceArguments& arguments,
                                                  const Library& library) {
  if (!arguments.predictor.empty()) {
    const auto predictor =
        load_predictor(library.find("predictor", arguments.predictor, SourceMark{}));
    const auto check = [&](const char* what, const std::string& asked, const std::string& is) {
      if (asked.empty() || asked == is) return;
      throw SpecError(fmt::format("predictor {} is of {} '{}', not '{}'", arguments.predictor, what,
                                  is, asked));
    };
    check("hardware", arguments.hardware, predictor->hardware);
    check("model", arguments.model, predictor->model);
    return predictor;
  }
  std::vector<std::string> known;
  for (const std::string& name : library.names("predictor")) {
    const auto predictor = load_predictor(library.find("predictor", name, SourceMark{}));
    const bool is_model = arguments.model.empty() || arguments.model == predictor->model;
    if (is_model && (arguments.hardware.empty() || arguments.hardware == predictor->hardware)) {
      if (!arguments.model.empty() || library.names("predictor").size() == 1) return predictor;
    }
    known.push_back(predictor->model + " on " + predictor->hardware);
  }
  throw SpecError(fmt::format("no predictor of {} on {}; known: {}; train one (`servelab train`)",
                              arguments.model.empty() ? "any model" : arguments.model,
                              arguments.hardware.empty() ? "any hardware" : arguments.hardware,
                              known.empty() ? "none" : fmt::format("{}", fmt::join(known, "; "))));
}

PackingModels models_of(const PlaceArguments& arguments, const Predictor& predictor) {
  PackingModels models =
      arguments.method == "proposed-fast" ? rules_of(predictor) : forests_of(predictor);
  models.margin = arguments.margin.value_or(models.margin);
  return models;
}

Packing pack(const PlaceArguments& arguments, const PackingModels& models,
             const PackingProblem& problem, const std::vector<int>& before) {
  if (!before.empty()) return pack_again(problem, models, before);
  if (arguments.method == "proposed-lat") return pack_for_latency(problem, models);
  return pack_greedily(problem, models, {.retry_final = arguments.last_test == "retry"});
}

// Adapters that starve a GPU that they have to themselves, with the copies that would share the
// rate.
std::string too_hot(const std::vector<NamedAdapter>& adapters, const PackingProblem& problem,
                    const PackingModels& models) {
  std::string text;
  for (const AdapterDemand& adapter : problem.adapters) {
    const auto starves = [&](int copies) {
      GpuFeatures alone;
      alone.add({adapter.id, adapter.rank, adapter.rate / copies});
      return models.starves(alone.with_slots(1));
    };
    int copies = 1;
    while (copies < kMostGpus && starves(copies)) ++copies;
    if (copies == 1) continue;
    text += fmt::format("{}adapter '{}' alone starves a GPU: {:g} requests/s need {} copies",
                        text.empty() ? "" : "; ", adapters[index(adapter.id)].name, adapter.rate,
                        copies);
  }
  return text;
}

// The exit code of a workload that no placement serves, said in one line.
int tell_unserved(const PlaceArguments& arguments, const std::vector<NamedAdapter>& adapters,
                  PackingProblem problem, const PackingModels& models, const std::string& why) {
  const std::string hot = too_hot(adapters, problem, models);
  std::string least = "no number of GPUs up to one for each adapter serves it";
  const int most = std::min(kMostGpus, static_cast<int>(adapters.size()));
  for (problem.gpus = arguments.gpus + 1; hot.empty() && problem.gpus <= most; ++problem.gpus) {
    if (!pack(arguments, models, problem, {}).refused.empty()) continue;
    least = fmt::format("{} GPUs would serve it", problem.gpus);
    break;
  }
  fmt::print(stderr, "servelab: error: no placement on {} GPUs: {}; {}\n", arguments.gpus, why,
             hot.empty() ? least : hot);
  return kUnserved;
}

void print_table(const Packing& packing, const PlacedServer& server, const Predictor& predictor) {
  fmt::print("{:>4} {:>9} {:>6} {:>6} {:>11} {:>24} {:>11} {:>10}\n", "GPU", "adapters", "A_max",
             "S_max", "requests/s", "tokens/s (90 %)", "starves", "KV tokens");
  for (std::size_t i = 0; i < packing.gpus.size(); ++i) {
    const PackedGpu& gpu = packing.gpus[i];
    if (gpu.adapters.empty()) {
      fmt::print("{:>4} {:>9}\n", i, "off");
      continue;
    }
    fmt::print("{:>4} {:>9} {:>6} {:>6} {:>11.4g} {:>24} {:>9.0f} % {:>10}\n", i,
               gpu.adapters.size(), gpu.slots, gpu.slot_rank, gpu.features[1],
               fmt::format("{:.0f} ({:.0f} to {:.0f})", gpu.tokens_per_s,
                           gpu.tokens_per_s * (1 - predictor.throughput_error),
                           gpu.tokens_per_s * (1 + predictor.throughput_error)),
               100 * gpu.starvation, server.kv_tokens(gpu.slots, gpu.slot_rank));
    const std::string outside = predictor.outside(gpu.features);
    if (!outside.empty()) {
      fmt::print(stderr, "servelab: warning: GPU {}: outside of what was trained on: {}\n", i,
                 outside);
    }
  }
}

void write_plan(const PlaceArguments& arguments, const Packing& packing, const Predictor& predictor,
                double margin, const std::vector<NamedAdapter>& adapters) {
  nlohmann::ordered_json plan;
  plan["model"] = predictor.model;
  plan["hardware"] = predictor.hardware;
  plan["method"] = arguments.method;
  plan["margin"] = margin;
  plan["predictor"] = predictor.digest;
  plan["slots"] = nlohmann::json::array();
  plan["slot_ranks"] = nlohmann::json::array();
  plan["adapters"] = nlohmann::ordered_json::object();
  std::vector<std::size_t> gpu_of(adapters.size());
  for (std::size_t i = 0; i < packing.gpus.size(); ++i) {
    for (const AdapterId id : packing.gpus[i].adapters) gpu_of[index(id)] = i;
    plan["slots"].push_back(packing.gpus[i].slots);
    plan["slot_ranks"].push_back(packing.gpus[i].slot_rank);
  }
  for (std::size_t i = 0; i < adapters.size(); ++i) plan["adapters"][adapters[i].name] = gpu_of[i];
  const std::string text = plan.dump(1) + "\n";
  save_atomically(arguments.out, std::as_bytes(std::span(text)));
}

// In single quotes where a shell would take a part of it for something else.
std::string in_shell(const std::string& text) {
  const bool is_plain = std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) ||
           std::string("-_./=:@+,").find(c) < std::string::npos;
  });
  if (is_plain && !text.empty()) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

void print_servers(const PlaceArguments& arguments, const Packing& packing,
                   const PointSettings& settings, const std::vector<NamedAdapter>& adapters) {
  fmt::print("\n# vLLM {}, one server a GPU; MODEL: --served-model\n", kVllm);
  for (std::size_t i = 0; i < packing.gpus.size(); ++i) {
    const PackedGpu& gpu = packing.gpus[i];
    if (gpu.adapters.empty()) continue;
    std::string line = fmt::format(
        "CUDA_VISIBLE_DEVICES={} vllm serve {} --port {} --max-num-seqs {} --max-model-len {} "
        "--gpu-memory-utilization {:g} --enable-lora --max-loras {} --max-lora-rank {} "
        "--max-cpu-loras {} --lora-modules",
        i, in_shell(arguments.served_model.empty() ? settings.model.name : arguments.served_model),
        8000 + i, settings.engine.limits.max_batch, settings.max_model_len(),
        settings.engine.memory_fraction, gpu.slots, vllm_rank(gpu.slot_rank), gpu.adapters.size());
    for (const AdapterId id : gpu.adapters) {
      const NamedAdapter& adapter = adapters[index(id)];
      line += " " + in_shell(adapter.name + "=" +
                             (adapter.path.empty() ? "adapters/" + adapter.name : adapter.path));
    }
    fmt::print("{}\n", line);
  }
}

// Simulates the plan; the number of GPUs that starve in some seed.
int verify(const PlaceArguments& arguments, const Packing& packing, PlacedServer* server,
           const std::vector<NamedAdapter>& adapters) {
  fmt::print("\nsimulated for an hour with ShareGPT's lengths:\n");
  std::set<std::size_t> starved;
  for (int seed = 1; seed <= arguments.verify; ++seed) {
    const PointSettings settings = server->run_as(adapters, packing, seed);
    const BuiltWorkload built = build_point_workload(settings, arguments.data_dir);
    const RunRecord record = run_point(settings, built.workload).record;
    if (!record.invalid_reasons.empty()) throw SpecError(record.invalid_reasons.front());
    std::vector<std::size_t> gpu_of_replica;
    for (std::size_t i = 0; i < record.deployment.units.size(); ++i) {
      if (!record.deployment.units[i].off) gpu_of_replica.push_back(i);
    }
    std::vector<double> asked(packing.gpus.size()), done(packing.gpus.size());
    for (std::size_t i = 0; i < record.requests.size(); ++i) {
      const Request& request = built.workload.requests[i];
      const RequestRecord& r = record.requests[i];
      if (r.replica == kNoReplica) continue;
      const std::size_t gpu = gpu_of_replica.at(index(r.replica));
      asked[gpu] += request.prompt_tokens + request.output_tokens;
      done[gpu] += (r.first_token == kUnset ? 0 : request.prompt_tokens) + r.generated;
    }
    for (std::size_t gpu = 0; gpu < asked.size(); ++gpu) {
      if (asked[gpu] == 0) continue;
      const double share = done[gpu] / asked[gpu];
      if (share < 0.9) starved.insert(gpu);
      fmt::print("  seed {} GPU {}: {:.0f} tokens/s, {:.1f} % of what came in{}\n", seed, gpu,
                 done[gpu] / to_seconds(record.end), 100 * share, share < 0.9 ? " (starves)" : "");
    }
  }
  return static_cast<int>(starved.size());
}

// One line for each row of features: tokens/s and the probability of starvation, by the forests and
// by the trees of few rules, in as many digits as tell numbers apart.
int predict_rows(const std::string& path, const Predictor& predictor) {
  CsvReader csv(path, fmt::format("the columns are {}", fmt::join(kFeatureNames, ", ")));
  std::array<std::size_t, kFeatureNames.size()> columns;
  for (std::size_t i = 0; i < columns.size(); ++i) columns[i] = csv.column(kFeatureNames[i]);
  fmt::print("throughput,starvation,throughput_rules,starvation_rules\n");
  while (csv.next()) {
    Features features;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      features[i] = static_cast<float>(csv.non_negative(columns[i]));
    }
    fmt::print("{},{},{},{}\n", predictor.throughput.predict(features),
               predictor.starvation.predict(features), predictor.throughput_rules.predict(features),
               predictor.starvation_rules.predict(features));
  }
  return 0;
}

}  // namespace

CLI::App* declare_place(CLI::App* app, PlaceArguments* arguments) {
  PlaceArguments& a = *arguments;
  CLI::App* command = app->add_subcommand(
      "place", "adapters on as few GPUs as serve them: a plan, and vLLM's command lines");
  auto* adapters = command->add_option("--adapters", a.adapters,
                                       "CSV: name, rank, rate (requests/s); path where known");
  auto* spec = command->add_option("--spec", a.spec, "the adapters of a spec's workload")
                   ->excludes(adapters);
  command->add_option("--trace", a.trace, "those of a trace (Mooncake's JSONL, with adapters)")
      ->excludes(adapters)
      ->excludes(spec);
  command->add_option("--from", a.from, "a plan in use: as few adapters move as can");
  command->add_option("--predict", a.predict,
                      "CSV of features: say what the models predict of each row, and no more");
  command->add_option("--gpus", a.gpus, "that there are")->check(CLI::Range(1, kMostGpus));
  command->add_option("--model", a.model, "whose predictor, as base/model/ names it");
  command->add_option("--hardware", a.hardware, "whose predictor, as base/hardware/ names it");
  command->add_option("--predictor", a.predictor, "in base/predictor/, or a path, in their place");
  command->add_option("--served-model", a.served_model, "what vLLM is to serve");
  command->add_option("--method", a.method, "how")
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(kMethods), std::end(kMethods))))
      ->capture_default_str();
  command->add_option("--final", a.last_test, "when the last adapters do not pass: error, retry")
      ->check(CLI::IsMember({"error", "retry"}))
      ->capture_default_str();
  command
      ->add_option("--margin", a.margin,
                   "place as if rates were higher by this share; default: as the predictor was "
                   "calibrated")
      ->check(CLI::Range(0.0, 10.0));
  command->add_option("--verify", a.verify, "simulate the plan with so many seeds")
      ->check(CLI::Range(0, 1000));
  command->add_option("--out", a.out, "the plan")->capture_default_str();
  return command;
}

int place_command(const PlaceArguments& arguments) {
  const Library library(arguments.experiments);
  if (!arguments.predict.empty()) {
    return predict_rows(arguments.predict, *choose_predictor(arguments, library));
  }
  const std::string* const sources[] = {&arguments.adapters, &arguments.spec, &arguments.trace};
  if (std::count_if(std::begin(sources), std::end(sources),
                    [](const std::string* source) { return !source->empty(); }) != 1) {
    throw SpecError("place needs one of --adapters FILE, --spec SPEC and --trace FILE");
  }
  refuse_to_replace("--out", arguments.out,
                    {arguments.adapters, arguments.spec, arguments.trace, arguments.from});
  if (arguments.gpus == 0) throw SpecError("place needs --gpus N: how many there are");
  if (std::isnan(arguments.margin.value_or(0))) throw SpecError("--margin must be a number");
  if (!arguments.from.empty() && arguments.method == "proposed-lat") {
    throw SpecError("--from moves as few adapters as it can; --method proposed-lat does not");
  }
  const auto predictor = choose_predictor(arguments, library);
  const std::vector<NamedAdapter> adapters =
      !arguments.adapters.empty() ? read_adapters(arguments.adapters)
      : !arguments.spec.empty()   ? adapters_of_spec(arguments)
                                  : adapters_of_trace(arguments.trace);
  const auto most_rank = static_cast<int>(predictor->high[3]);
  PackingProblem problem;
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    if (adapters[i].rank > most_rank) {
      throw SpecError(
          fmt::format("adapter '{}' has rank {}, but the predictor knows ranks up to {}",
                      adapters[i].name, adapters[i].rank, most_rank));
    }
    problem.adapters.push_back({static_cast<AdapterId>(static_cast<std::uint32_t>(i)),
                                adapters[i].rank, adapters[i].rate});
  }
  problem.gpus = arguments.gpus;
  PlacedServer server(*predictor, library, adapters, arguments.gpus);
  std::map<std::pair<int, int>, std::int64_t> known;
  problem.kv_tokens = [&](int slots, int rank) {
    const auto [at, is_new] = known.emplace(std::pair(slots, rank), 0);
    if (is_new) at->second = server.kv_tokens(slots, rank);
    return at->second;
  };
  const std::vector<int> before =
      arguments.from.empty() ? std::vector<int>() : gpus_before(arguments.from, adapters);
  const PackingModels models = models_of(arguments, *predictor);
  const Packing packing = pack(arguments, models, problem, before);
  if (!packing.refused.empty()) {
    return tell_unserved(arguments, adapters, problem, models, packing.refused);
  }
  const auto used = std::count_if(packing.gpus.begin(), packing.gpus.end(),
                                  [](const PackedGpu& gpu) { return !gpu.adapters.empty(); });
  fmt::print("{} adapters on {} of {} GPUs ({}, margin {:.3g} %; {} on {})\n", adapters.size(),
             used, arguments.gpus, arguments.method, 100 * models.margin, predictor->model,
             predictor->hardware);
  print_table(packing, server, *predictor);
  if (!before.empty()) print_moves(packing, before, adapters);
  write_plan(arguments, packing, *predictor, models.margin, adapters);
  fmt::print("plan: {}\n", arguments.out);
  print_servers(arguments, packing, server.settings(), adapters);
  if (arguments.verify == 0) return 0;
  const int starved = verify(arguments, packing, &server, adapters);
  if (starved == 0) return 0;
  fmt::print(stderr, "servelab: error: {} of {} GPUs starve when simulated; raise --margin\n",
             starved, used);
  return 1;
}

}  // namespace servelab
