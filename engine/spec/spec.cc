#include "engine/spec/spec.h"

#include <algorithm>
#include <set>

#include "engine/core/registry.h"
#include "engine/serve/backend.h"
#include "engine/serve/cluster.h"
#include "engine/serve/policy.h"
#include "engine/spec/extends.h"
#include "engine/spec/spec_text.h"
#include "engine/spec/sweep.h"

namespace servelab {
namespace {

constexpr std::int64_t kMaxSeeds = 10000;

void require(const ConfigNode& root, const char* key, const char* what) {
  const ConfigNode* node = root.find(key);
  if (node == nullptr || node->is_null()) {
    throw SpecError(root.mark, std::string("a spec needs '") + key + "' (" + what + ")");
  }
}

std::int64_t seed_of(const ConfigNode& node) {
  struct One {
    std::int64_t seed = 0;
  } one;
  ParamField("seeds", ParamField::Target(&one.seed), "").range(0, 9e15).assign(node);
  return one.seed;
}

std::vector<std::int64_t> seeds_of(const ConfigNode* node) {
  if (node == nullptr) return {0};
  std::vector<std::int64_t> seeds;
  if (node->is_scalar()) {
    const std::int64_t count = seed_of(*node);
    if (count < 1 || count > kMaxSeeds) {
      throw SpecError(node->mark, "'seeds' as a number is how many there are, 1 to 10000");
    }
    for (std::int64_t seed = 0; seed < count; ++seed) seeds.push_back(seed);
    return seeds;
  }
  if (!node->is_list() || node->items.empty()) {
    throw SpecError(node->mark, "'seeds' must be a list of whole numbers or how many there are");
  }
  for (const ConfigNode& item : node->items) {
    const std::int64_t seed = seed_of(item);
    if (std::find(seeds.begin(), seeds.end(), seed) != seeds.end()) {
      throw SpecError(item.mark, "seed " + item.scalar + " is given twice");
    }
    seeds.push_back(seed);
  }
  return seeds;
}

void check_keys(const ConfigNode& map, const std::string& where,
                const std::vector<std::string>& known) {
  for (const auto& [key, value] : map.members) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      throw SpecError(value.mark, "unknown key " + in_quotes(key) + " in " + where + "; " +
                                      suggest(key, known));
    }
  }
}

TechniqueEntry technique_of(const ConfigNode& node) {
  TechniqueEntry entry;
  entry.mark = node.mark;
  if (node.is_scalar()) {
    entry.technique = node.scalar;
  } else if (node.is_map()) {
    check_keys(node, "an entry of 'techniques'", technique_keys());
    const ConfigNode* technique = node.find("technique");
    if (technique == nullptr) {
      throw SpecError(node.mark, "an entry of 'techniques' needs 'technique' (its name)");
    }
    entry.technique = shown_text(*technique, "'technique'");
    entry.mark = technique->mark;
    if (const ConfigNode* label = node.find("label")) entry.label = shown_text(*label, "'label'");
    if (const ConfigNode* route = node.find("route")) {
      entry.route = shown_text(*route, "'route'");
      Registry<ClusterPolicy>::instance().make(entry.route, route->mark);
    }
    if (const ConfigNode* params = node.find("with")) entry.params = *params;
    if (const ConfigNode* params = node.find("route_with")) entry.route_params = *params;
    if (const ConfigNode* engine = node.find("engine")) entry.engine = *engine;
  } else {
    throw SpecError(node.mark, "an entry of 'techniques' must be a name or a map");
  }
  Registry<Technique>::instance().make(entry.technique, entry.mark);
  if (entry.label.empty()) entry.label = entry.technique;
  return entry;
}

std::vector<TechniqueEntry> techniques_of(const ConfigNode& node) {
  if (!node.is_list() || node.items.empty()) {
    throw SpecError(node.mark, "'techniques' must be a list of at least one technique");
  }
  std::vector<TechniqueEntry> entries;
  std::set<std::string> labels;
  for (const ConfigNode& item : node.items) {
    entries.push_back(technique_of(item));
    if (!labels.insert(entries.back().label).second) {
      throw SpecError(entries.back().mark, "technique " + in_quotes(entries.back().label) +
                                               " is listed twice; give each a 'label' of its own");
    }
  }
  return entries;
}

// `expect:` names claims of claims.yaml in the experiments folder; analysis/verdicts.py judges
// them.
void check_expectations(const ConfigNode* node, const Library& library) {
  if (node == nullptr || node->is_null()) return;
  if (!node->is_list()) {
    throw SpecError(node->mark, "'expect' must be a list of claims, by their ids in claims.yaml");
  }
  const std::vector<std::string> known = library.claim_ids();
  for (const ConfigNode& item : node->items) {
    if (!item.is_scalar() || item.scalar.empty()) {
      throw SpecError(item.mark, "an entry of 'expect' must be the id of a claim in claims.yaml");
    }
    if (known.empty() || std::find(known.begin(), known.end(), item.scalar) != known.end())
      continue;
    throw SpecError(item.mark,
                    "unknown claim " + in_quotes(item.scalar) + "; " + suggest(item.scalar, known));
  }
}

// `quick:` in its form; null in the full one.
const ConfigNode* quick_of(const ConfigNode& root, SpecForm form) {
  if (form == SpecForm::kFull) return nullptr;
  const ConfigNode* const quick = root.find("quick");
  if (quick == nullptr || quick->is_null()) {
    throw SpecError(root.mark,
                    "this spec has no 'quick' section, which says what --quick leaves out");
  }
  if (!quick->is_map()) {
    throw SpecError(quick->mark, "'quick' must be a map from dotted paths to values");
  }
  return quick;
}

const ConfigNode* of_form(const char* key, const ConfigNode& root, const ConfigNode* quick) {
  const ConfigNode* const own = quick != nullptr ? quick->find(key) : nullptr;
  return own != nullptr ? own : root.find(key);
}

// The binary cannot know which figures analysis/ has: that is for drawing to say.
std::string figure_of(const ConfigNode* node, const std::string& id) {
  if (node == nullptr || node->is_null()) return id.substr(id.rfind('/') + 1);
  if (!node->is_scalar() || !names_figure(node->scalar)) {
    throw SpecError(node->mark, "'figure' must name a drawing such as dlora/fig10" +
                                    (node->is_scalar() ? "; got " + in_quotes(node->scalar) : ""));
  }
  return node->scalar;
}

}  // namespace

void SpecHeader::fields(ParamFields& f) {
  f.add("title", &title, "what the figure shows, in one line").required();
  f.add("description", &description, "more about it, for people");
  f.add("model", &model, "a file in base/model/ without .yaml, or a path").required();
  f.add("hardware", &hardware, "a file in base/hardware/ without .yaml, or a path").required();
  f.add("backend", &backend,
        "what carries steps out: twin computes in virtual time, null not at all")
      .one_of(Registry<BackendKind>::instance().names());
}

void ClusterSection::fields(ParamFields& f) {
  f.add("replicas", &replicas, "copies of the model").range(1, 65534);
  f.add("tensor_parallel", &tensor_parallel, "devices per replica").range(1, 64);
  f.add("repository_copies", &repository_copies,
        "replicas whose repository has an adapter, drawn at random; requests go to one of them "
        "(CaraServe 7.1 groups adapters, a group per server: 1; its routing chooses among the "
        "servers that have the adapter: more). 0: all")
      .range(0, 65534);
  f.add("route", &route, "cluster policy for every technique; empty: each technique's own");
  f.add("stop_at_s", &stop_at_s, "the run is cut off here, in seconds; 0: when all is served")
      .range(0, 1e9);
  f.add("max_unfinished", &max_unfinished,
        "a run with a larger share of its requests unfinished at the end is INVALID; 1: any share")
      .range(0, 1);
  f.add("migration_delay_s", &migration_delay_s, "time that a migrated request is on its way")
      .range(0, 1e6);
  f.add("max_waiting", &max_waiting,
        "an arrival enters its replica only while fewer requests than this wait there (preempted "
        "and migrated ones come on top); 0: always")
      .range(0, 1e9);
  f.add(
       "when_full", &when_full,
       "an arrival beyond max_waiting: wait holds it back at its client, as a load generator whose "
       "connection stays open, in the order of arrival until there is room; latencies count from "
       "its arrival, and one that never gets in is unfinished (the placement paper's twin: 25501). "
       "reject ends it at once, as a server that answers 429 or 503")
      .one_of({kWhenFull.begin(), kWhenFull.end()});
}

void LoraSection::fields(ParamFields& f) {
  f.add("targets", &targets, "linear layers that adapters change")
      .one_of({"q", "k", "v", "o", "gate", "up", "down"});
}

void RecordSection::fields(ParamFields& f) {
  f.add("requests", &requests,
        "keep every request and event; false: only sums over the run and each replica");
  f.add("series", &series, "keep values over time, by bin and replica");
  f.add("series_bin_s", &series_bin_s, "width of a bin in seconds").range(1e-6, 1e9);
  f.add("decisions", &decisions, "keep the decision log as text");
  f.add("token_times", &token_times, "keep the stamp of every output token (large)");
  f.add("steps", &steps, "keep every step: when it ran, on what, and where its time went (large)");
}

RuntimeSection::RuntimeSection() {
  const auto& kinds = Registry<BackendKind>::instance();
  for (const std::string& name : kinds.names()) backends[name] = kinds.make(name);
}

void HostLoraSection::fields(ParamFields& f) {
  f.add("host_lora", &by,
        "who computes LoRA on the host: the engine's own threads, which only cpu can; threads "
        "beside them; or processes with a core each, which share its memory (CaraServe 4.2); auto: "
        "inline on cpu, threads on cuda")
      .one_of({"auto", "inline", "threads", "processes"});
  f.add("host_lora_workers", &workers,
        "threads or processes of each device for it; 0: on cpu a quarter of the processors, on "
        "cuda all but one of them, shared out")
      .range(0, 256);
  f.add("host_lora_rows", &rows,
        "rows of one adapter that one of them is given at most, c in CaraServe 4.2; 0: chunk_rows "
        "of the hardware profile, which servelab calibrate measures on one core, or 8")
      .range(0, 1 << 20);
  f.add("host_lora_transport", &transport,
        "how activations come to processes: memory that they share, or UNIX sockets")
      .one_of({"shared", "sockets"});
  f.add("host_lora_shares_cores", &shares_cores,
        "more threads and workers than processors are meant");
}

void RuntimeSection::fields(ParamFields& f) {
  f.add("pin", &pin, "each compute thread keeps to a core of its own");
  f.add("dtype", &dtype,
        "of weights, activations and KV; auto: that of the stored matrices, f32 for several types")
      .one_of({"auto", "bf16", "f16", "f32"});
  f.add("adapter_store", &adapter_store, "where adapters wait to be loaded")
      .one_of({"host", "disk"});
  f.add("registry", &registry, "adapters of `servelab adapters`; empty: random weights");
  f.add("temperature", &temperature, "of sampling; 0: greedy").range(0, 100);
  f.add("top_p", &top_p, "mass of the most likely tokens that are sampled from").range(1e-6, 1);
  f.add("measure_parts", &measure_parts,
        "time LoRA and attention apart on cuda too, where that runs every step of decodes twice");
  f.add("max_arrival_lag_s", &max_arrival_lag_s,
        "a request that enters later than this after its scheduled time makes a run INVALID")
      .range(1e-6, 1e6);
  f.add("max_processor_loss", &max_processor_loss,
        "a run in wall-clock time that did not get a larger share than this of the processor time "
        "that it asked for, because others did, is INVALID, and computed again by the next run; "
        "1: any share")
      .range(0, 1);
  host_lora.fields(f);
  for (const auto& [name, backend] : backends) backend->fields(f);
}

const std::vector<std::string>& spec_sections() {
  static const std::vector<std::string> kSections = {
      "extends",    "cluster", "lora",   "engine", "runtime", "workload", "sweep",
      "techniques", "seeds",   "record", "figure", "expect",  "quick"};
  return kSections;
}
const std::vector<std::string>& technique_keys() {
  static const std::vector<std::string> kKeys = {"technique", "label",      "with",
                                                 "route",     "route_with", "engine"};
  return kKeys;
}

std::string SweepPosition::text() const {
  std::string text;
  for (const auto& [path, value] : coordinates) {
    if (!text.empty()) text += ' ';
    text += path.substr(path.rfind('.') + 1) + '=';
    text += value.is_scalar() ? value.scalar : canonical_json(value);
  }
  return text;
}

std::size_t Spec::point_count() const {
  std::size_t count = 0;
  for (const SweepPosition& position : positions) count += position.techniques.size();
  return count * seeds.size();
}

Spec load_spec(const std::string& path, const std::string& experiments_dir, SpecForm form) {
  return parse_spec(read_yaml_file(path), path, Library::of_spec(path, experiments_dir), form);
}

Spec parse_spec(const std::string& yaml, const std::string& path, const Library& library,
                SpecForm form) {
  const auto [root, whole_yaml] = read_whole_spec(yaml, path, library);
  SpecHeader header;
  bind_params(root, "the spec", &header, spec_sections());
  shown_text(*root.find("title"), "'title'");
  require(root, "workload", "a map, or a file in base/workload/ without .yaml");
  require(root, "techniques", "a list of names");

  Spec spec;
  spec.path = path;
  spec.yaml = whole_yaml;
  spec.library = library;
  spec.id = spec.library.spec_id(path);
  spec.title = header.title;
  spec.figure = figure_of(root.find("figure"), spec.id);
  spec.techniques = techniques_of(*root.find("techniques"));
  const ConfigNode* const quick = quick_of(root, form);
  spec.has_quick = root.find("quick") != nullptr;
  if (quick != nullptr) spec.id += "-quick";
  spec.seeds = seeds_of(of_form("seeds", root, quick));
  check_expectations(root.find("expect"), spec.library);

  ConfigNode settings = ConfigNode::map();
  settings.mark = root.mark;
  for (const char* key : {"model", "hardware", "backend", "cluster", "lora", "engine", "runtime",
                          "workload", "record"}) {
    if (const ConfigNode* node = root.find(key)) settings.set(key, *node);
  }
  resolve_workload(&settings, spec.library);
  if (quick != nullptr) shorten(*quick, spec.library, &settings);
  std::vector<std::string> labels;
  for (const TechniqueEntry& entry : spec.techniques) labels.push_back(entry.label);
  spec.positions =
      expand_sweep(settings, of_form("sweep", root, quick), labels, spec.library, &spec.swept);
  return spec;
}

void use_profile(const std::string& profile, Spec* spec) {
  ConfigNode node = ConfigNode::of(profile);
  node.mark.file = "--profile";
  std::set<std::string> seen;
  std::vector<SweepPosition> positions;
  for (SweepPosition& position : spec->positions) {
    position.settings.set("hardware", node);
    for (auto& [path, value] : position.coordinates) {
      if (path == "hardware") value = node;
    }
    std::string what = canonical_json(position.settings) + canonical_json(position.with);
    for (const std::size_t technique : position.techniques) what += " " + std::to_string(technique);
    if (seen.insert(what).second) positions.push_back(std::move(position));
  }
  spec->positions = std::move(positions);
  spec->id += "_profile";
}

}  // namespace servelab
