#include "engine/cli/doctor/data_use.h"

#include <set>

#include "engine/core/check.h"
#include "engine/spec/library.h"
#include "engine/spec/spec.h"
#include "engine/workload/data_files.h"

namespace servelab::doctor {
namespace {

bool says(const ConfigNode* map, const char* key, const char* value) {
  const ConfigNode* node = map != nullptr && map->is_map() ? map->find(key) : nullptr;
  return node != nullptr && node->is_scalar() && node->scalar == value;
}

// Every value that is a data file's name: traces and length sets are named under several keys.
void collect_names(const ConfigNode& node, std::set<std::string>* names) {
  if (node.is_scalar() && find_data_file(node.scalar) != nullptr) names->insert(node.scalar);
  for (const ConfigNode& item : node.items) collect_names(item, names);
  for (const ConfigMember& member : node.members) collect_names(member.value, names);
}

// Whether a run without the file ends in an error (data/README.md, "What is embedded").
bool is_needed(const DataFile& file, const ConfigNode& workload) {
  const ConfigNode* arrivals = workload.find("arrivals");
  return says(&workload, "fallback", "error") || file.kind == TraceKind::kClients ||
         file.kind == TraceKind::kRate ||
         (says(arrivals, "process", "replay") && says(arrivals, "trace", file.name.c_str()));
}

void add_spec(const Spec& spec, DataUses* uses) {
  std::set<std::string> used, needed;
  for (const SweepPosition& position : spec.positions) {
    const ConfigNode* workload = position.settings.find("workload");
    if (workload == nullptr) continue;
    std::set<std::string> names;
    collect_names(*workload, &names);
    for (const std::string& name : names) {
      used.insert(name);
      if (is_needed(*find_data_file(name), *workload)) needed.insert(name);
    }
  }
  for (const std::string& name : used) uses->of[name].specs.push_back(spec.id);
  for (const std::string& name : needed) uses->of[name].needs.push_back(spec.id);
}

}  // namespace

DataUses data_uses(const std::string& experiments) {
  DataUses uses;
  const Library library(experiments);
  for (const std::string& id : library.spec_ids()) {
    try {
      add_spec(load_spec(library.find_spec(id), experiments), &uses);
    } catch (const SpecError& bad) {
      uses.broken.emplace_back(bad.what());
    }
  }
  return uses;
}

}  // namespace servelab::doctor
