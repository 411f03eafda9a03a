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
#include "engine/record/atomic_file.h"
#include "engine/run/point.h"
#include "engine/spec/library.h"
#include "engine/spec/spec.h"
#include "engine/workload/csv.h"

namespace servelab {
namespace {

constexpr int kUnserved = 3;  // exit code
constexpr int kMostGpus = 4096;
constexpr const char* kMethods[] = {"proposed", "proposed-fast", "proposed-lat"};
// What vLLM 0.8.5 takes as --max-lora-rank (vllm/config.py).
constexpr int kVllmRanks[] = {8, 16, 32, 64, 128, 256, 320, 512};
constexpr const char* kVllm = "0.8.5";

struct NamedAdapter {
  std::string name, path;
  int rank = 0;
  double rate = 0;  // requests/s
};

std::vector<NamedAdapter> read_adapters(const std::string& path) {
  CsvReader csv(path, "the columns are name, rank, rate (requests/s), and path if it is known");
  const std::size_t name = csv.column("name"), rank = csv.column("rank"), rate = csv.column("rate");
  std::vector<NamedAdapter> adapters;
  std::map<std::string, int> lines;
  while (csv.next()) {
    NamedAdapter adapter;
    adapter.name = csv.text(name);
    if (adapter.name.empty()) csv.fail("the adapter has no name");
    const auto [at, is_new] = lines.emplace(adapter.name, csv.line_number());
    if (!is_new) csv.fail(fmt::format("adapter '{}' is in line {} too", adapter.name, at->second));
    if (csv.text(rank).empty()) csv.fail("adapter '" + adapter.name + "' has no rank");
    if (csv.text(rate).empty()) csv.fail("adapter '" + adapter.name + "' has no rate");
    const std::int64_t wide = csv.count(rank);
    if (wide < 1 || wide > kVllmRanks[std::size(kVllmRanks) - 1]) {
      csv.fail(fmt::format("rank {} of adapter '{}' is not 1 to {}", wide, adapter.name,
                           kVllmRanks[std::size(kVllmRanks) - 1]));
    }
    adapter.rank = static_cast<int>(wide);
    adapter.rate = csv.non_negative(rate);
    adapter.path = csv.has_column("path") ? std::string(csv.text(csv.column("path"))) : "";
    adapters.push_back(std::move(adapter));
  }
  if (adapters.empty()) throw SpecError(path + ": has no adapters");
  return adapters;
}

std::vector<NamedAdapter> adapters_of_spec(const PlaceArguments& arguments) {
  const Library library(arguments.experiments);
  const Spec spec = load_spec(library.find_spec(arguments.spec), arguments.experiments);
  const PointSettings settings =
      resolve_point(spec, spec.positions.front(), spec.techniques.front(), spec.seeds.front());
  const BuiltWorkload built = build_point_workload(settings, arguments.data_dir);
  const DeploymentView view(point_cluster(settings, built.workload), built.workload);
  std::vector<NamedAdapter> adapters;
  for (std::size_t i = 0; i < built.workload.adapters.size(); ++i) {
    const Adapter& adapter = built.workload.adapters[i];
    const auto id = static_cast<AdapterId>(static_cast<std::uint32_t>(i));
    adapters.push_back({adapter.name, "", adapter.rank, view.rate(id)});
  }
  if (adapters.empty()) throw SpecError(spec.path + ": its workload has no adapters");
  return adapters;
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

int vllm_rank(int rank) {
  return *std::find_if(std::begin(kVllmRanks), std::end(kVllmRanks),
                       [rank](int allowed) { return allowed >= rank; });
}

// The server that a predictor was trained on, with these adapters.
class Server {
 public:
  Server(const Predictor& predictor, const Library& library,
         const std::vector<NamedAdapter>& adapters, int gpus)
      : spec_(spec_of(predictor, library)) {
    ConfigNode& settings = spec_.positions.front().settings;
    settings.set_path("cluster.replicas", ConfigNode::of(std::to_string(gpus), false));
    settings_ = resolve_point(spec_, spec_.positions.front(), spec_.techniques.front(), 0);
    for (const NamedAdapter& adapter : adapters) {
      workload_.adapters.push_back(Adapter{adapter.name, ModelId{}, adapter.rank, 0});
    }
    cluster_ = point_cluster(settings_, workload_);
    view_.emplace(cluster_, workload_);
  }
  const PointSettings& settings() const { return settings_; }

  // KV tokens beside so many slots of the rank that vLLM takes for this one; 0: does not start.
  std::int64_t kv_tokens(int slots, int rank) const {
    Unit unit = view_->equal_replicas().units.front();
    unit.adapter_slots = slots;
    unit.slot_rank = vllm_rank(rank);
    const UnitMemory memory = view_->memory(unit);
    return memory.refused.empty() ? memory.kv_blocks * settings_.engine.block_tokens : 0;
  }

  // The same server for a run of these adapters, each at its rate, with real lengths.
  PointSettings run_as(const std::vector<NamedAdapter>& adapters, const Packing& packing,
                       std::int64_t seed) {
    SweepPosition position = spec_.positions.front();
    ConfigNode ranks = ConfigNode::list(), rates = ConfigNode::list();
    ConfigNode gpus = ConfigNode::list(), slots = ConfigNode::list();
    std::vector<std::size_t> gpu_of(adapters.size());
    for (std::size_t i = 0; i < packing.gpus.size(); ++i) {
      for (const AdapterId id : packing.gpus[i].adapters) gpu_of[index(id)] = i;
      slots.items.push_back(ConfigNode::of(std::to_string(packing.gpus[i].slots), false));
    }
    for (std::size_t i = 0; i < adapters.size(); ++i) {
      ranks.items.push_back(ConfigNode::of(std::to_string(adapters[i].rank), false));
      rates.items.push_back(ConfigNode::of(fmt::format("{}", adapters[i].rate), false));
      gpus.items.push_back(ConfigNode::of(std::to_string(gpu_of[i]), false));
    }
    ConfigNode& s = position.settings;
    s.set_path("workload.adapters.count", ConfigNode::of(std::to_string(adapters.size()), false));
    s.set_path("workload.adapters.ranks", ranks);
    s.set_path("workload.popularity.weights", rates);
    s.set_path("workload.popularity.shuffle", ConfigNode::of("false", false));
    ConfigNode lengths = ConfigNode::map();
    lengths.set("source", ConfigNode::of("sharegpt"));
    s.set_path("workload.lengths", lengths);
    int widest = 0;
    for (const NamedAdapter& adapter : adapters) widest = std::max(widest, vllm_rank(adapter.rank));
    s.set_path("engine.slot_rank", ConfigNode::of(std::to_string(widest), false));
    s.set_path("record.requests", ConfigNode::of("true", false));
    TechniqueEntry entry = spec_.techniques.front();
    entry.route = "as-planned";
    entry.route_params = ConfigNode::map();
    PointSettings settings = resolve_point(spec_, position, entry, seed);
    // Names are those that the workload gives its adapters.
    ConfigNode names = ConfigNode::list();
    const BuiltWorkload built = build_point_workload(settings, "");
    for (const Adapter& adapter : built.workload.adapters) {
      names.items.push_back(ConfigNode::of(adapter.name));
    }
    entry.route_params.set("adapters", names);
    entry.route_params.set("gpu", gpus);
    entry.route_params.set("slots", slots);
    return resolve_point(spec_, position, entry, seed);
  }

 private:
  static Spec spec_of(const Predictor& predictor, const Library& library) {
    Spec spec;
    spec.library = library;
    SweepPosition position;
    position.settings = parse_yaml(predictor.settings, "the predictor's settings");
    position.settings.erase("technique");
    position.settings.erase("seed");
    position.with = ConfigNode::map();
    position.techniques = {0};
    spec.positions = {std::move(position)};
    TechniqueEntry entry;
    entry.technique = entry.label = "vllm-lora";
    spec.techniques = {std::move(entry)};
    spec.seeds = {0};
    return spec;
  }

  Spec spec_;
  PointSettings settings_;
  Workload workload_;
  ClusterSettings cluster_;
  std::optional<DeploymentView> view_;
};

Packing pack(const PlaceArguments& arguments, const Predictor& predictor,
             const PackingProblem& problem) {
  if (arguments.method == "proposed-lat") return pack_for_latency(problem, forests_of(predictor));
  return pack_greedily(problem,
                       arguments.method == "proposed" ? forests_of(predictor) : rules_of(predictor),
                       {.retry_final = arguments.last_test == "retry"});
}

// Adapters that starve a GPU that they have to themselves, with the copies that would share the
// rate.
std::string too_hot(const std::vector<NamedAdapter>& adapters, const PackingProblem& problem,
                    const Predictor& predictor) {
  std::string text;
  for (const PackedAdapter& adapter : problem.adapters) {
    const auto starves = [&](int copies) {
      GpuFeatures alone;
      alone.add({adapter.id, adapter.rank, adapter.rate / copies});
      return predictor.starvation.predict(alone.with_slots(1)) > 0.5;
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
                  PackingProblem problem, const Predictor& predictor, const std::string& why) {
  const std::string hot = too_hot(adapters, problem, predictor);
  std::string least = "no number of GPUs up to one for each adapter serves it";
  const int most = std::min(kMostGpus, static_cast<int>(adapters.size()));
  for (problem.gpus = arguments.gpus + 1; hot.empty() && problem.gpus <= most; ++problem.gpus) {
    if (!pack(arguments, predictor, problem).refused.empty()) continue;
    least = fmt::format("{} GPUs would serve it", problem.gpus);
    break;
  }
  fmt::print(stderr, "servelab: error: no placement on {} GPUs: {}; {}\n", arguments.gpus, why,
             hot.empty() ? least : hot);
  return kUnserved;
}

void print_table(const Packing& packing, const Server& server, const Predictor& predictor,
                 double margin) {
  fmt::print("{:>4} {:>9} {:>6} {:>6} {:>11} {:>24} {:>11} {:>10}\n", "GPU", "adapters", "A_max",
             "S_max", "requests/s", "tokens/s (90 %)", "starves", "KV tokens");
  for (std::size_t i = 0; i < packing.gpus.size(); ++i) {
    const PackedGpu& gpu = packing.gpus[i];
    if (gpu.adapters.empty()) {
      fmt::print("{:>4} {:>9}\n", i, "off");
      continue;
    }
    fmt::print("{:>4} {:>9} {:>6} {:>6} {:>11.4g} {:>24} {:>9.0f} % {:>10}\n", i,
               gpu.adapters.size(), gpu.slots, gpu.slot_rank, gpu.features[1] / (1 + margin),
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
                const std::vector<NamedAdapter>& adapters) {
  nlohmann::ordered_json plan;
  plan["model"] = predictor.model;
  plan["hardware"] = predictor.hardware;
  plan["method"] = arguments.method;
  plan["margin"] = arguments.margin;
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
int verify(const PlaceArguments& arguments, const Packing& packing, Server* server,
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
  command->add_option("--spec", a.spec, "the adapters of a spec's workload, in its place")
      ->excludes(adapters);
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
  command->add_option("--margin", a.margin, "place as if rates were higher by this share")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
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
  if (arguments.adapters.empty() == arguments.spec.empty()) {
    throw SpecError("place needs --adapters FILE or --spec SPEC");
  }
  if (arguments.gpus == 0) throw SpecError("place needs --gpus N: how many there are");
  if (std::isnan(arguments.margin)) throw SpecError("--margin must be a number");
  const std::vector<NamedAdapter> adapters =
      arguments.adapters.empty() ? adapters_of_spec(arguments) : read_adapters(arguments.adapters);
  const auto predictor = choose_predictor(arguments, library);
  const auto most_rank = static_cast<int>(predictor->high[3]);
  PackingProblem problem;
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    if (adapters[i].rank > most_rank) {
      throw SpecError(
          fmt::format("adapter '{}' has rank {}, but the predictor knows ranks up to {}",
                      adapters[i].name, adapters[i].rank, most_rank));
    }
    problem.adapters.push_back({static_cast<AdapterId>(static_cast<std::uint32_t>(i)),
                                adapters[i].rank, adapters[i].rate * (1 + arguments.margin)});
  }
  problem.gpus = arguments.gpus;
  Server server(*predictor, library, adapters, arguments.gpus);
  std::map<std::pair<int, int>, std::int64_t> known;
  problem.kv_tokens = [&](int slots, int rank) {
    const auto [at, is_new] = known.emplace(std::pair(slots, rank), 0);
    if (is_new) at->second = server.kv_tokens(slots, rank);
    return at->second;
  };
  const Packing packing = pack(arguments, *predictor, problem);
  if (!packing.refused.empty()) {
    return tell_unserved(arguments, adapters, problem, *predictor, packing.refused);
  }
  const auto used = std::count_if(packing.gpus.begin(), packing.gpus.end(),
                                  [](const PackedGpu& gpu) { return !gpu.adapters.empty(); });
  fmt::print("{} adapters on {} of {} GPUs ({}; {} on {})\n", adapters.size(), used, arguments.gpus,
             arguments.method, predictor->model, predictor->hardware);
  print_table(packing, server, *predictor, arguments.margin);
  write_plan(arguments, packing, *predictor, adapters);
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
