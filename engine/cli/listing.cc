#include "engine/cli/listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/backend/cost/hardware.h"
#include "engine/core/params.h"
#include "engine/core/registry.h"
#include "engine/model/model_config.h"
#include "engine/run/engine_file.h"
#include "engine/serve/backend.h"
#include "engine/serve/policy.h"
#include "engine/spec/spec.h"
#include "engine/workload/settings.h"

namespace servelab {
namespace {

using Json = nlohmann::ordered_json;

// Calls visit(path, fields) for each section of a spec; "" is the top level.
void for_each_section(const std::function<void(const std::string&, const ParamFields&)>& visit) {
  const auto section = [&visit](const std::string& path, auto settings) {
    ParamFields fields;
    settings.fields(fields);
    visit(path, fields);
  };
  section("", SpecHeader{});
  section("cluster", ClusterSection{});
  section("lora", LoraSection{});
  section("engine", EngineSettings{});
  section("runtime", RuntimeSection{});
  section("workload", WorkloadBounds{});
  section("workload.adapters", AdapterSettings{});
  section("workload.arrivals", ArrivalSettings{});
  section("workload.popularity", PopularitySettings{});
  section("workload.lengths", LengthSettings{});
  section("record", RecordSection{});
}

std::string default_text(const ParamField& field) {
  if (field.is_required()) return "required";
  const std::string value = canonical_json(field.value());
  return value == "\"\"" ? "default empty" : "default " + value;
}

std::string field_line(const std::string& name, const ParamField& field) {
  const std::string limits = field.limits();
  return fmt::format("  {:<34} {}{}; {}\n  {:<34} {}\n", name, field.type_name(),
                     limits.empty() ? "" : ", " + limits, default_text(field), "", field.help());
}

std::string comma_list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "(none)" : text;
}

std::string names_line(const std::string& title, const std::vector<std::string>& names) {
  return title + ":\n  " + comma_list(names) + "\n";
}

std::string file_fields(const std::string& title, const ParamFields& fields) {
  std::string text = fmt::format("\n{}\n", title);
  for (const ParamField& field : fields.all()) text += field_line(field.name(), field);
  return text;
}

std::string in_brackets(const std::string& text) { return text.empty() ? "" : " [" + text + "]"; }

EngineFile engine_named(const std::string& name, const Library& library) {
  return load_engine_file(library.find("engine", name, {}));
}

// A value as a spec has it: [q, k, v].
std::string value_text(const ConfigNode& node) {
  if (node.is_scalar()) return node.scalar;
  std::vector<std::string> items;
  for (const ConfigNode& item : node.items) items.push_back(item.scalar);
  return "[" + comma_list(items) + "]";
}

// Of every cost that is not 0.
std::string costs_text(EngineCosts costs) {
  std::vector<std::string> terms;
  for (const auto& [key, value] : effective_params(&costs).members) {
    if (value.scalar != "0") terms.push_back(key + " " + value.scalar);
  }
  return comma_list(terms);
}

std::string reservation_text(const EngineSettings& engine) {
  if (engine.slot_rank == 0) return "as its adapters need";
  std::vector<std::string> parts = engine.slot_targets;
  if (parts.empty()) parts = {"lora.targets"};
  if (engine.slot_vocabulary) parts.push_back("vocabulary");
  return fmt::format("rank {} of {}; counted in {}", engine.slot_rank, comma_list(parts),
                     engine.allocator);
}

std::string engines_text(const Library& library) {
  std::string text = "engines (`engine.like`; servelab show NAME):\n";
  for (const std::string& name : library.names("engine")) {
    const EngineFile file = engine_named(name, library);
    EngineSettings engine;
    bind_params(file.engine, "engine", &engine);
    text += fmt::format("  {:<16} {}\n", name, file.summary);
    const auto line = [&text](const char* title, const std::string& value) {
      text += fmt::format("  {:<16}   {:<20} {}\n", "", title, value);
    };
    line("requests, tokens", fmt::format("{}, {} in one step", engine.limits.max_batch,
                                         engine.limits.max_batch_tokens));
    line("a slot", reservation_text(engine));
    line("beside kernels", costs_text(file.costs));
    line("source", file.source);
  }
  return text;
}

std::string engine_text(const std::string& name, const Library& library) {
  EngineFile file = engine_named(name, library);
  std::string text = fmt::format("{}: {}\nsource: {}\n", name, file.summary, file.source);
  const auto section = [&text](const std::string& title, const ConfigNode& values,
                               const ParamFields& fields) {
    text += "\n" + title + "\n";
    for (const ParamField& field : fields.all()) {
      const ConfigNode* value = values.find(field.name());
      if (value == nullptr || value->scalar == "0") continue;
      text += fmt::format("  {:<34} {}\n  {:<34} {}\n", field.name(), value_text(*value), "",
                          field.help());
    }
  };
  const auto fields_of = [](auto settings) {
    ParamFields fields;
    settings.fields(fields);
    return fields;
  };
  section("sets of `engine:`", file.engine, fields_of(EngineSettings{}));
  section("sets of the hardware profile's host costs", file.host, fields_of(HostConstants{}));
  section("costs beside the kernels'", effective_params(&file.costs), fields_of(EngineCosts{}));
  return text;
}

Json type_schema(const ParamField& field) {
  const std::string type = field.type_name();
  Json schema;
  Json item;
  const bool is_list = type.rfind("a list of", 0) == 0;
  if (type == "a whole number") item["type"] = "integer";
  if (type == "a number" || type == "a list of numbers") item["type"] = "number";
  if (type == "true or false") item["type"] = "boolean";
  if (type == "text" || type == "a list of texts") item["type"] = "string";
  if (!field.choices().empty()) item["enum"] = field.choices();
  if (is_list) {
    Json list;
    list["type"] = "array";
    list["items"] = item;
    schema["anyOf"] = Json::array({list, item});
  } else {
    schema = item;
  }
  const std::string limits = field.choices().empty() ? field.limits() : "";
  schema["description"] = field.help() + (limits.empty() ? "" : " (" + limits + ")");
  if (!field.is_required()) schema["default"] = Json::parse(canonical_json(field.value()));
  return schema;
}

// In a variant, null drops what is inherited.
Json or_null(Json schema) {
  if (schema.contains("anyOf")) schema["anyOf"].push_back({{"type", "null"}});
  if (schema.contains("type")) schema["type"] = Json::array({schema["type"], "null"});
  if (schema.contains("enum")) schema["enum"].push_back(nullptr);
  return schema;
}

Json object_schema(const ParamFields& fields) {
  Json schema;
  schema["type"] = "object";
  schema["additionalProperties"] = false;
  schema["properties"] = Json::object();
  Json required = Json::array();
  for (const ParamField& field : fields.all()) {
    schema["properties"][field.name()] = or_null(type_schema(field));
    if (field.is_required()) required.push_back(field.name());
  }
  if (!required.empty()) schema["required"] = required;
  return schema;
}

Json technique_schema() {
  Json map;
  map["type"] = "object";
  map["additionalProperties"] = false;
  map["required"] = Json::array({"technique"});
  Json& properties = map["properties"];
  properties["technique"] = {{"enum", Registry<Technique>::instance().names()}};
  properties["label"] = {{"type", "string"}};
  properties["with"] = {{"type", "object"}, {"description", "parameters: servelab show NAME"}};
  properties["route"] = {{"enum", Registry<ClusterPolicy>::instance().names()}};
  properties["route_with"] = {{"type", "object"}, {"description", "parameters of the route"}};
  ParamFields engine;
  EngineSettings settings;
  settings.fields(engine);
  properties["engine"] = object_schema(engine);
  Json name;
  name["enum"] = Registry<Technique>::instance().names();
  Json schema;
  schema["type"] = "array";
  schema["minItems"] = 1;
  schema["items"]["anyOf"] = Json::array({name, map});
  return schema;
}

}  // namespace

std::string list_text(const Library& library) {
  const Registry<Technique>& techniques = Registry<Technique>::instance();
  std::string text = "techniques (servelab show NAME):\n";
  for (const std::string& name : techniques.names()) {
    const auto technique = techniques.make(name);
    text += fmt::format("  {:<16} {}{}\n", name, technique->summary(),
                        in_brackets(desirable(technique->capabilities(), {})));
  }
  const Registry<ClusterPolicy>& policies = Registry<ClusterPolicy>::instance();
  text += "cluster policies (`route`):\n";
  for (const std::string& name : policies.names()) {
    const auto policy = policies.make(name);
    text += fmt::format("  {:<24} {}{}\n", name, policy->summary(),
                        in_brackets(desirable({}, policy->capabilities())));
  }
  text += "backends (`backend`):\n";
  const auto& backends = Registry<BackendKind>::instance();
  for (const std::string& name : backends.names()) {
    text += fmt::format("  {:<24} {}\n", name, backends.make(name)->summary());
  }
  text += "engines (`engine.like`; servelab show engines):\n";
  for (const std::string& name : library.names("engine")) {
    text += fmt::format("  {:<24} {}\n", name, engine_named(name, library).summary);
  }
  text += names_line("models", library.names("model"));
  text += names_line("hardware", library.names("hardware"));
  text += names_line("workloads", library.names("workload"));
  text += names_line("specs", library.spec_ids());
  return text;
}

namespace {

std::string technique_text(const std::string& name) {
  const auto technique = Registry<Technique>::instance().make(name);
  const Technique::Capabilities has = technique->capabilities();
  const auto yes = [](bool value) { return value ? "yes" : "no"; };
  std::string text = fmt::format(
      "{}: {}\npaper: {}\n\ncapabilities\n  {:<34} {}\n  {:<34} {}\n  {:<34} {}\n  {:<34} {}\n"
      "  {:<34} {}\n  {:<34} {}\n",
      name, technique->summary(), technique->paper(), "several adapters in one step",
      yes(has.mixed_batches), "merges adapters into the weights", yes(has.merges),
      "knows the true output length", yes(has.knows_output_length), "computes LoRA on the host",
      yes(has.host_lora), "no first token waits for a load", yes(has.cold_start_free),
      "cluster policy", technique->default_cluster_policy());
  ParamFields fields;
  technique->fields(fields);
  text += "\nparameters (`with:`)\n";
  for (const ParamField& field : fields.all()) text += field_line(field.name(), field);
  if (fields.all().empty()) text += "  (none)\n";
  const auto policy = Registry<ClusterPolicy>::instance().make(technique->default_cluster_policy());
  ParamFields route;
  policy->fields(route);
  if (!route.all().empty()) text += "\nparameters of its cluster policy (`route_with:`)\n";
  for (const ParamField& field : route.all()) text += field_line(field.name(), field);
  EngineSettings before, after;
  technique->configure(&after);
  const ConfigNode old_values = effective_params(&before);
  const ConfigNode new_values = effective_params(&after);
  for (const auto& [key, value] : new_values.members) {
    if (old_values.find(key)->scalar == value.scalar) continue;
    text += fmt::format("\nsets engine.{} to {}\n", key, value.scalar);
  }
  return text;
}

}  // namespace

std::string show_text(const std::string& name, const Library& library) {
  if (name == "engines") return engines_text(library);
  std::vector<std::string> known = library.names("engine");
  if (std::find(known.begin(), known.end(), name) != known.end()) return engine_text(name, library);
  const Registry<Technique>& techniques = Registry<Technique>::instance();
  if (techniques.has(name)) return technique_text(name);
  for (const std::string& technique : techniques.names()) known.push_back(technique);
  known.emplace_back("engines");
  throw SpecError("unknown technique or engine '" + name + "'; " + suggest(name, known));
}

std::string spec_keys_text() {
  std::string text =
      "A spec is a YAML file below experiments/; its id is its path there without .yaml.\n";
  for_each_section([&](const std::string& path, const ParamFields& fields) {
    text += fmt::format("\n{}\n", path.empty() ? "top level" : path + ":");
    for (const ParamField& field : fields.all()) text += field_line(field.name(), field);
  });
  text +=
      "\nstructured keys\n"
      "  extends       the spec that this one is a variant of: a name beside it, an id or a path.\n"
      "                Maps are merged over its own; lists, `sweep` and a named workload replace\n"
      "                them; `key: null` drops; title, description, expect and quick are not\n"
      "                inherited\n"
      "  workload      a map of the sections above, or a name in base/workload/;\n"
      "                `extends: name` inside the map merges it over that file\n"
      "  sweep         dotted paths to lists of values, such as workload.arrivals.rate: [1, 2];\n"
      "                several paths give every combination; `zip:` a list of maps that change\n"
      "                together; with.<parameter> sets techniques' parameters,\n"
      "                cluster.route_with.<parameter> those of cluster policies. A list of such "
      "maps\n"
      "                joins their positions; `techniques:` in one: the labels that run there;\n"
      "                `sample:` the share of its positions that runs, always the same ones\n"
      "  techniques    a list of names, or maps of: technique, label, with, route,\n"
      "                route_with, engine\n"
      "  seeds         a list of whole numbers, or how many (0, 1, 2, ...); default [0]\n"
      "  figure        the figure to draw it as, such as dlora/fig10, when it is not the spec's "
      "id\n"
      "  quick         what `servelab run --quick` uses instead: dotted paths to values, `sweep`, "
      "`seeds`\n"
      "  expect        a list of ids in claims.yaml: what `python -m analysis.verdicts` judges\n";
  ModelConfig model;
  ParamFields model_fields;
  model.fields(model_fields);
  text += file_fields("a model file (base/model/*.yaml)", model_fields);
  HardwareProfile hardware;
  ParamFields hardware_fields;
  hardware.fields(hardware_fields);
  return text + file_fields("a hardware file (base/hardware/*.yaml), besides its sections",
                            hardware_fields);
}

std::string spec_schema_json() {
  Json root;
  Json workload;
  for_each_section([&](const std::string& path, const ParamFields& fields) {
    const Json schema = object_schema(fields);
    if (path.empty()) {
      root = schema;
    } else if (path == "workload") {
      workload = schema;
      workload["properties"]["extends"] = {{"type", "string"}};
    } else if (path.rfind("workload.", 0) == 0) {
      workload["properties"][path.substr(9)] = or_null(schema);
    } else {
      root["properties"][path] = or_null(schema);
    }
  });
  root["properties"]["cluster"]["properties"]["route_with"] = {
      {"type", "object"}, {"description", "parameters for every route that has them"}};
  Json name;
  name["type"] = "string";
  root["properties"]["workload"]["anyOf"] = Json::array({name, workload});
  root["properties"]["sweep"] = {{"type", Json::array({"object", "array", "null"})}};
  root["properties"]["techniques"] = technique_schema();
  root["properties"]["seeds"] = Json::object();
  root["properties"]["figure"] = Json::object();
  root["properties"]["quick"] = {{"type", "object"}};
  root["properties"]["expect"] = {{"type", "array"}, {"items", {{"type", "string"}}}};
  root["properties"]["extends"] = {{"type", "string"}, {"description", "a spec to be merged over"}};
  Json whole;
  whole["required"] = Json::array({"model", "hardware", "workload", "techniques"});
  Json variant;
  variant["required"] = Json::array({"extends"});
  root["required"] = Json::array({"title"});
  root["anyOf"] = Json::array({whole, variant});
  Json schema;
  schema["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  schema["title"] = "servelab experiment";
  schema.update(root);
  return schema.dump(2) + "\n";
}

}  // namespace servelab
