#include "engine/run/point.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <utility>

#include "engine/backend/cost/cost_model.h"
#include "engine/backend/cost/make_cost_model.h"
#include "engine/core/digest.h"
#include "engine/model/adapter_registry.h"
#include "engine/model/hf_model.h"
#include "engine/record/build_id.h"
#include "engine/run/engine_file.h"
#include "engine/run/point_check.h"
#include "engine/run/real_run.h"
#include "engine/serve/backend.h"
#include "engine/spec/spec_text.h"

namespace servelab {
namespace {

constexpr double kMostRequests = 2e8;

// The sub-map, or an empty one that stands at its parent's place.
ConfigNode section_of(const ConfigNode& settings, const std::string& name) {
  const ConfigNode* node = settings.find(name);
  if (node != nullptr) return *node;
  ConfigNode empty = ConfigNode::map();
  empty.mark = settings.mark;
  return empty;
}

template <class T>
void bind_section(const ConfigNode& settings, const char* name, T* out) {
  bind_params(section_of(settings, name), name, out);
}

// The spec's engine, over the one that it is like, whose costs join the hardware's.
void bind_engine(const ConfigNode& settings, const Library& library, PointSettings* point) {
  ConfigNode section = section_of(settings, "engine");
  if (const ConfigNode* like = section.find("like")) {
    if (!like->is_scalar()) throw SpecError(like->mark, "'like' must be a name or a path");
    EngineFile file = load_engine_file(library.find("engine", like->scalar, like->mark));
    bind_params(file.host, "host", &point->hardware.host);
    point->hardware.engine_costs = file.costs;
    merge_over(&file.engine, section);
    section = std::move(file.engine);
  }
  bind_params(section, "engine", &point->engine);
}

void bind_cluster(const ConfigNode& settings, ClusterSection* out) {
  bind_params(section_of(settings, "cluster"), "cluster", out, {"route_with"});
}

std::string named_file(const SweepPosition& position, const Library& library, const char* key) {
  const ConfigNode* node = position.settings.find(key);
  SL_CHECK(node != nullptr, "load_spec requires it");
  if (!node->is_scalar()) {
    throw SpecError(node->mark, std::string("'") + key + "' must be a name or a path");
  }
  return library.find(key, node->scalar, node->mark);
}

}  // namespace

ProfileFinder hardware_in(const Library& library) {
  return [&library](const std::string& name, const SourceMark& where) {
    return library.find("hardware", name, where);
  };
}

namespace {

// A file of base/model/, or a Hugging Face folder with its weights.
ModelConfig named_model(const SweepPosition& position, const Library& library) {
  const ConfigNode* node = position.settings.find("model");
  if (node != nullptr && node->is_scalar()) {
    std::error_code ignored;
    const auto beside = std::filesystem::path(node->mark.file).parent_path() / node->scalar;
    for (const std::filesystem::path& path : {beside, std::filesystem::path(node->scalar)}) {
      if (std::filesystem::exists(path / "config.json", ignored)) {
        return load_hf_config(path.string());
      }
    }
  }
  return load_model_config(named_file(position, library, "model"));
}

void check_backend(const ConfigNode& settings, PointSettings* point) {
  const ConfigNode* node = settings.find("backend");
  if (node == nullptr) return;
  ParamFields fields;
  SpecHeader header;
  header.fields(fields);
  for (const ParamField& field : fields.all()) {
    if (field.name() == "backend") field.assign(*node);
  }
  point->backend = header.backend;
}

// Parameters that name files get their paths.
void find_files(const ParamFields& fields, const Library& library, ConfigNode* params) {
  for (const ParamField& field : fields.all()) {
    ConfigNode* name = field.file_kind().empty() ? nullptr : params->find(field.name());
    if (name == nullptr || !name->is_scalar() || name->scalar.empty()) continue;
    name->scalar = library.find(field.file_kind(), name->scalar, name->mark);
  }
}

// The technique with its parameters: those of its entry, then swept ones that it has.
void bind_technique(const SweepPosition& position, const TechniqueEntry& entry,
                    const Library& library, PointSettings* point) {
  auto technique = Registry<Technique>::instance().make(entry.technique, entry.mark);
  ParamFields fields;
  technique->fields(fields);
  ConfigNode params = entry.params.is_null() ? ConfigNode::map() : entry.params;
  if (params.mark.file.empty()) params.mark = entry.mark;
  const std::vector<std::string> known = fields.names();
  for (const auto& [name, value] : position.with.members) {
    if (std::find(known.begin(), known.end(), name) != known.end()) params.set(name, value);
  }
  find_files(fields, library, &params);
  fields.bind(params, "technique '" + entry.technique + "'");
  point->technique_id = entry.technique;
  point->technique_params = fields.values();
  point->technique = std::move(technique);
}

// A swept `with.<parameter>` must be known to at least one technique of the spec.
void check_swept_params(const Spec& spec, const SweepPosition& position) {
  for (const auto& [name, value] : position.with.members) {
    std::vector<std::string> known;
    for (const TechniqueEntry& entry : spec.techniques) {
      const auto technique = Registry<Technique>::instance().make(entry.technique, entry.mark);
      ParamFields fields;
      technique->fields(fields);
      for (const std::string& field : fields.names()) known.push_back(field);
    }
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    std::sort(known.begin(), known.end());
    known.erase(std::unique(known.begin(), known.end()), known.end());
    throw SpecError(value.mark, "no technique of this spec has a parameter " + in_quotes(name) +
                                    "; " + suggest(name, known));
  }
}

// A target given twice would be computed and charged once, but recorded as another setting.
void check_targets(const ConfigNode& settings, const LoraSection& lora) {
  const ConfigNode section = section_of(settings, "lora");
  const ConfigNode* node = section.find("targets");
  if (node == nullptr) return;
  if (lora.targets.empty()) throw SpecError(node->mark, "'targets' must name at least one layer");
  std::set<std::string> seen;
  for (std::size_t i = 0; i < lora.targets.size(); ++i) {
    if (seen.insert(lora.targets[i]).second) continue;
    const SourceMark& mark = i < node->items.size() ? node->items[i].mark : node->mark;
    throw SpecError(mark.line == 0 ? node->mark : mark,
                    "'targets' has '" + lora.targets[i] + "' twice");
  }
}

double number_or(const ConfigNode& map, const char* key, double otherwise) {
  const ConfigNode* node = map.find(key);
  if (node == nullptr || !node->is_scalar()) return otherwise;
  char* end = nullptr;
  const double value = std::strtod(node->scalar.c_str(), &end);
  return end != node->scalar.c_str() && *end == '\0' ? value : otherwise;
}

// What this program cannot do yet, or no machine could hold, although the workload can say it.
void check_workload(const ConfigNode& workload) {
  if (number_or(workload, "models", 1) > 1) {
    throw SpecError(workload.find("models")->mark,
                    "workload.models: no technique here serves several base models yet");
  }
  const double requests = number_or(workload, "requests", 0);
  if (requests > kMostRequests) {
    throw SpecError(
        workload.find("requests")->mark,
        fmt::format("'requests' of {} would need about {:.0f} GB of memory ({} bytes "
                    "each); at most {:.0f} million",
                    in_quotes(workload.find("requests")->scalar), requests * kBytesPerRequest / 1e9,
                    kBytesPerRequest, kMostRequests / 1e6));
  }
}

void check_repositories(const ConfigNode& settings, const ClusterSection& cluster) {
  if (cluster.repository_copies <= cluster.replicas) return;
  throw SpecError(section_of(settings, "cluster").find("repository_copies")->mark,
                  fmt::format("cluster.repository_copies is {}, but there are {} replicas to hold "
                              "an adapter's copies; lower it, or raise cluster.replicas",
                              cluster.repository_copies, cluster.replicas));
}

// The cluster policy of a technique's entry: its own route, the cluster's, or the technique's.
std::string route_of(const ConfigNode& settings, const TechniqueEntry& entry) {
  if (!entry.route.empty()) return entry.route;
  ClusterSection cluster;
  bind_cluster(settings, &cluster);
  if (!cluster.route.empty()) return cluster.route;
  return Registry<Technique>::instance().make(entry.technique)->default_cluster_policy();
}

// `cluster.route_with`: parameters for every policy of the spec that has them; one at least must.
const ConfigNode* shared_route_params(const Spec& spec, const ConfigNode& settings) {
  const ConfigNode* cluster = settings.find("cluster");
  const ConfigNode* params = cluster == nullptr ? nullptr : cluster->find("route_with");
  if (params == nullptr || params->is_null()) return nullptr;
  if (!params->is_map()) throw SpecError(params->mark, "'route_with' must be a map");
  std::vector<std::string> known;
  for (const TechniqueEntry& entry : spec.techniques) {
    const auto policy =
        Registry<ClusterPolicy>::instance().make(route_of(settings, entry), params->mark);
    ParamFields fields;
    policy->fields(fields);
    for (const std::string& field : fields.names()) known.push_back(field);
  }
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  for (const auto& [name, value] : params->members) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    throw SpecError(value.mark, "no cluster policy of this spec has a parameter " +
                                    in_quotes(name) + "; " + suggest(name, known));
  }
  return params;
}

void choose_route(const Spec& spec, const ConfigNode& settings, const TechniqueEntry& entry,
                  PointSettings* point) {
  point->route = route_of(settings, entry);
  const ConfigNode cluster = section_of(settings, "cluster");
  const ConfigNode* at = cluster.find("route");
  const auto policy =
      Registry<ClusterPolicy>::instance().make(point->route, at != nullptr ? at->mark : entry.mark);
  ParamFields fields;
  policy->fields(fields);
  ConfigNode params = ConfigNode::map();
  params.mark = entry.mark;
  if (const ConfigNode* shared = shared_route_params(spec, settings)) {
    const std::vector<std::string> known = fields.names();
    for (const auto& [name, value] : shared->members) {
      if (std::find(known.begin(), known.end(), name) != known.end()) params.set(name, value);
    }
  }
  if (!entry.route_params.is_null()) {
    if (!entry.route_params.is_map()) {
      throw SpecError(entry.route_params.mark, "'route_with' must be a map");
    }
    for (const auto& [name, value] : entry.route_params.members) params.set(name, value);
  }
  find_files(fields, spec.library, &params);
  fields.bind(params, "cluster policy '" + point->route + "'");
  point->route_params = fields.values();
}

ConfigNode requested_settings(const SweepPosition& position, const TechniqueEntry& entry,
                              std::int64_t seed) {
  ConfigNode requested = position.settings;
  ConfigNode technique = ConfigNode::map();
  technique.set("technique", ConfigNode::of(entry.technique));
  if (!entry.params.is_null()) technique.set("with", entry.params);
  if (!position.with.members.empty()) technique.set("swept", position.with);
  if (!entry.route.empty()) technique.set("route", ConfigNode::of(entry.route));
  if (!entry.route_params.is_null()) technique.set("route_with", entry.route_params);
  if (!entry.engine.is_null()) technique.set("engine", entry.engine);
  requested.set("technique", technique);
  requested.set("seed", ConfigNode::of(std::to_string(seed), false));
  return requested;
}

ConfigNode sources_node(const BuiltWorkload& workload) {
  ConfigNode list = ConfigNode::list();
  for (const WorkloadSource& source : workload.sources) {
    ConfigNode node = ConfigNode::map();
    node.set("role", ConfigNode::of(source.role));
    node.set("name", ConfigNode::of(source.name));
    node.set("origin", ConfigNode::of(source.origin));
    node.set("sha256", ConfigNode::of(source.sha256));
    node.set("licence", ConfigNode::of(source.licence));
    list.items.push_back(std::move(node));
  }
  return list;
}

}  // namespace

std::unique_ptr<CostModel> point_cost_model(const PointSettings& settings, int devices) {
  return make_cost_model(settings.model, settings.hardware, devices, settings.lora.targets);
}

std::unique_ptr<ClusterPolicy> point_cluster_policy(const PointSettings& settings) {
  auto policy = Registry<ClusterPolicy>::instance().make(settings.route);
  ParamFields fields;
  policy->fields(fields);
  fields.bind(settings.route_params, "cluster policy '" + settings.route + "'");
  return policy;
}

PointSettings resolve_point(const Spec& spec, const SweepPosition& position,
                            const TechniqueEntry& entry, std::int64_t seed) {
  const ConfigNode& settings = position.settings;
  PointSettings point;
  check_backend(settings, &point);
  point.model = named_model(position, spec.library);
  point.hardware = load_hardware_profile(named_file(position, spec.library, "hardware"),
                                         hardware_in(spec.library));
  bind_cluster(settings, &point.cluster);
  check_repositories(settings, point.cluster);
  bind_section(settings, "lora", &point.lora);
  check_targets(settings, point.lora);
  bind_section(settings, "record", &point.record);
  bind_section(settings, "runtime", &point.runtime);
  if (is_real(point.backend) || settings.find("runtime") != nullptr) {
    point.model.bytes_per_weight = static_cast<int>(
        kernels::bytes_of(element_type(point.backend, point.runtime, point.model)));
  }
  bind_engine(settings, spec.library, &point);
  check_swept_params(spec, position);
  bind_technique(position, entry, spec.library, &point);
  point.technique->configure(&point.engine);
  if (!entry.engine.is_null()) {
    bind_params(entry.engine, "'engine' of technique " + in_quotes(entry.label), &point.engine);
  }
  choose_route(spec, settings, entry, &point);
  try {
    point_cost_model(point, point.cluster.tensor_parallel);
  } catch (const SpecError& error) {
    throw SpecError(section_of(settings, "cluster").mark, error.what());
  }
  try {
    check_technique(point);
  } catch (const SpecError& error) {
    throw SpecError(entry.mark, "technique " + in_quotes(entry.label) + ": " + error.what());
  }
  point.workload = section_of(settings, "workload");
  check_workload(point.workload);
  point.seed = seed;
  point.requested = requested_settings(position, entry, seed);
  return point;
}

namespace {

// What an adapter of these files takes on each device: its layers may differ in rank.
Bytes registered_bytes(const PointSettings& settings, const RegisteredAdapter& adapter) {
  const Bytes widest = adapter_bytes_per_device(settings.model, settings.cluster.tensor_parallel,
                                                adapter.rank, adapter.targets);
  if (adapter.parameters == 0) return widest;
  const auto uniform =
      static_cast<double>(settings.model.lora_parameters(adapter.rank, adapter.targets));
  const double share = static_cast<double>(adapter.parameters) / uniform;
  return std::max<Bytes>(1, std::llround(static_cast<double>(widest) * share));
}

// The workload's adapters become the registered ones, by name: their names, ranks and sizes.
void use_registered_adapters(const PointSettings& settings, Workload* workload) {
  const std::string& registry = settings.runtime.registry;
  const std::vector<RegisteredAdapter> registered = AdapterRegistry(registry).list();
  if (registered.size() < workload->adapters.size()) {
    throw SpecError(fmt::format(
        "{}: holds {} adapters, but the workload uses {}; register more with `servelab adapters "
        "add`, or lower workload.adapters.count",
        registry, registered.size(), workload->adapters.size()));
  }
  for (std::size_t i = 0; i < workload->adapters.size(); ++i) {
    Adapter& adapter = workload->adapters[i];
    adapter.name = registered[i].name;
    adapter.rank = registered[i].rank;
    adapter.bytes = registered_bytes(settings, registered[i]);
  }
}

}  // namespace

int PointSettings::max_model_len() const {
  return engine.max_model_len > 0 ? std::min(model.max_context_tokens, engine.max_model_len)
                                  : model.max_context_tokens;
}

BuiltWorkload build_point_workload(const PointSettings& settings, const std::string& data_dir,
                                   bool requests) {
  WorkloadContext context;
  context.seed = static_cast<std::uint64_t>(settings.seed);
  context.data_dir = data_dir;
  context.requests = requests;
  context.max_context_tokens = settings.max_model_len();
  context.adapter_bytes = [&settings](int rank) {
    return adapter_bytes_per_device(settings.model, settings.cluster.tensor_parallel, rank,
                                    settings.lora.targets);
  };
  BuiltWorkload built = build_workload(settings.workload, context);
  if (!settings.runtime.registry.empty()) {
    use_registered_adapters(settings, &built.workload);
  }
  const int slot_rank = settings.engine.slot_rank;
  for (const Adapter& adapter : built.workload.adapters) {
    if (slot_rank == 0 || adapter.rank <= slot_rank) continue;
    throw SpecError("adapter " + in_quotes(adapter.name) + " has rank " +
                    std::to_string(adapter.rank) + ", but slots are reserved for rank " +
                    std::to_string(slot_rank) + "; raise engine.slot_rank");
  }
  return built;
}

ConfigNode effective_settings(const PointSettings& settings, const BuiltWorkload& workload) {
  PointSettings copy = settings;  // fields() needs members that it could write to
  ConfigNode engine = effective_params(&copy.engine);
  const bool unified = copy.engine.adapter_memory == AdapterMemory::kUnified;
  engine.set("adapter_memory", ConfigNode::of(unified ? "unified" : "slots"));
  engine.set("adapter_form",
             ConfigNode::of(copy.engine.adapters_as_models ? "whole-model" : "lora"));
  ConfigNode technique = ConfigNode::map();
  technique.set("technique", ConfigNode::of(copy.technique_id));
  technique.set("with", copy.technique_params);
  ConfigNode cluster = effective_params(&copy.cluster);
  // Where each has every adapter there is nothing to say of repositories.
  if (copy.cluster.repository_copies == 0) cluster.erase("repository_copies");
  cluster.set("route", ConfigNode::of(copy.route));
  cluster.set("route_with", copy.route_params);

  ConfigNode node = ConfigNode::map();
  node.set("model", effective_params(&copy.model));
  node.set("hardware", copy.hardware.effective());
  node.set("backend", ConfigNode::of(copy.backend));
  node.set("cluster", std::move(cluster));
  node.set("lora", effective_params(&copy.lora));
  node.set("engine", std::move(engine));
  node.set("runtime", effective_params(&copy.runtime));
  node.set("workload", workload.effective);
  node.set("record", effective_params(&copy.record));
  node.set("technique", std::move(technique));
  node.set("seed", ConfigNode::of(std::to_string(copy.seed), false));
  return node;
}

std::string point_key(const ConfigNode& effective, const BuiltWorkload& workload) {
  ConfigNode node = ConfigNode::map();
  node.set("effective", effective);
  node.set("sources", sources_node(workload));
  node.set("schema", ConfigNode::of(std::to_string(kResultSchema), false));
  node.set("build", ConfigNode::of(build_id()));
  return sha256_hex(canonical_json(node)).substr(0, 16);
}

std::string sources_json(const BuiltWorkload& workload) {
  return canonical_json(sources_node(workload));
}

std::string trace_names(const BuiltWorkload& workload) {
  std::string names;
  for (const WorkloadSource& source : workload.sources) {
    std::string name = source.name;
    if (source.origin == "embedded" && name.find("embedded") == std::string::npos) {
      name += " (embedded)";
    }
    if (names.find(name) != std::string::npos) continue;
    if (!names.empty()) names += ", ";
    names += name;
  }
  return names.empty() ? "generated" : names;
}

PointIdentity point_identity(const std::string& spec_id, const SweepPosition& position,
                             const PointSettings& settings, const BuiltWorkload& workload) {
  PointIdentity identity;
  identity.spec_id = spec_id;
  identity.technique = settings.technique_id;
  identity.declares =
      desirable(settings.technique->capabilities(), point_cluster_policy(settings)->capabilities());
  identity.seed = settings.seed;
  identity.backend = settings.backend;
  identity.hardware = settings.hardware.name;
  identity.model = settings.model.name;
  identity.trace = trace_names(workload);
  identity.requested = canonical_json(settings.requested);
  identity.sources = sources_json(workload);
  ConfigNode sweep = ConfigNode::map();
  for (const auto& [path, value] : position.coordinates) sweep.set(path, value);
  identity.sweep = canonical_json(sweep);
  for (const std::string& note : workload.notes) {
    identity.notes += (identity.notes.empty() ? "" : "; ") + note;
  }
  return identity;
}

}  // namespace servelab
