#include "engine/run/sweep.h"

#include <algorithm>
#include <set>

#include "engine/run/spec_text.h"

namespace servelab {
namespace {

constexpr std::size_t kMaxPositions = 100000;
constexpr int kMaxExtends = 16;

using Assignment = std::vector<std::pair<std::string, ConfigNode>>;
using Axis = std::vector<Assignment>;  // alternatives, each setting one or more paths

const std::vector<std::string>& sweepable() {
  static const std::vector<std::string> kHeads = {
      "model", "hardware", "backend", "cluster", "lora", "engine", "runtime", "workload", "with"};
  return kHeads;
}

void check_path(const std::string& path, const SourceMark& mark, const std::string& verb) {
  const std::string head = path.substr(0, path.find('.'));
  const std::vector<std::string>& heads = sweepable();
  if (std::find(heads.begin(), heads.end(), head) == heads.end()) {
    throw SpecError(mark, "cannot " + verb + " " + in_quotes(path) + ": unknown section " +
                              in_quotes(head) + "; " + suggest(head, heads));
  }
  const bool is_bad_form = path.back() == '.' || path.find("..") != std::string::npos;
  if (is_bad_form ||
      (head == "with" && (path == "with" || path.find('.', 5) != std::string::npos))) {
    throw SpecError(mark, "cannot " + verb + " " + in_quotes(path) +
                              ": expected a path such as workload.arrivals.rate or with.alpha");
  }
}

// Equal positions would be drawn over each other and counted as more seeds than there are.
void check_distinct(const std::vector<ConfigNode>& values, const std::string& what,
                    const SourceMark& otherwise) {
  std::set<std::string> seen;
  for (const ConfigNode& value : values) {
    if (seen.insert(value_identity(value)).second) continue;
    throw SpecError(
        value.mark.line == 0 ? otherwise : value.mark,
        what + " has " +
            (value.is_scalar() ? in_quotes(value.scalar) : in_quotes(canonical_json(value))) +
            " twice");
  }
}

Axis axis_of(const std::string& path, const ConfigNode& values) {
  check_path(path, values.mark, "sweep");
  if (!values.is_list() || values.items.empty()) {
    throw SpecError(values.mark,
                    "sweep of " + in_quotes(path) + " must be a list of at least one value");
  }
  check_distinct(values.items, "the sweep of " + in_quotes(path), values.mark);
  Axis axis;
  for (ConfigNode value : values.items) {
    if (value.mark.line == 0) value.mark = values.mark;
    axis.push_back({{path, std::move(value)}});
  }
  return axis;
}

Axis zip_axis(const ConfigNode& list) {
  if (!list.is_list() || list.items.empty()) {
    throw SpecError(list.mark, "'zip' must be a list of maps, each setting the same paths");
  }
  check_distinct(list.items, "'zip'", list.mark);
  Axis axis;
  for (const ConfigNode& item : list.items) {
    if (!item.is_map() || item.members.empty()) {
      throw SpecError(item.mark, "an entry of 'zip' must be a map from paths to values");
    }
    for (const auto& [path, value] : item.members) check_path(path, value.mark, "sweep");
    for (const auto& [path, value] : list.items.front().members) {
      if (item.find(path) == nullptr || item.members.size() != list.items.front().members.size()) {
        throw SpecError(item.mark,
                        "every entry of 'zip' must set the same paths as the first one" +
                            std::string(item.find(path) ? "" : "; '" + path + "' is missing"));
      }
    }
    axis.push_back({});
    for (const auto& [path, value] : list.items.front().members) {
      axis.back().emplace_back(path, *item.find(path));
    }
  }
  return axis;
}

ConfigNode load_workload(const ConfigNode& node, const Library& library, int depth) {
  if (depth > kMaxExtends) throw SpecError(node.mark, "'extends' goes round in a circle");
  const ConfigNode* base_name = node.is_map() ? node.find("extends") : &node;
  if (base_name == nullptr) return node;
  if (!base_name->is_scalar()) {
    throw SpecError(base_name->mark, "'extends' must be the name of a workload");
  }
  const ConfigNode file =
      parse_yaml_file(library.find("workload", base_name->scalar, base_name->mark));
  if (!file.is_map()) throw SpecError(file.mark, "a workload file must be a map");
  ConfigNode merged = load_workload(file, library, depth + 1);
  if (node.is_map()) {
    ConfigNode over = node;
    std::erase_if(over.members, [](const auto& member) { return member.key == "extends"; });
    merge_over(&merged, over);
  }
  merged.mark = node.mark;
  return merged;
}

// Maps that set_path made on the way stand where the swept value does, for messages.
void mark_path(ConfigNode* node, const std::string& path, const SourceMark& mark) {
  for (std::size_t start = 0; node != nullptr;) {
    if (node->mark.file.empty()) node->mark = mark;
    const std::size_t dot = path.find('.', start);
    node = node->find(path.substr(start, dot - start));
    if (dot == std::string::npos) return;
    start = dot + 1;
  }
}

void set_marked(const std::string& path, const ConfigNode& value, const Library& library,
                ConfigNode* settings) {
  settings->set_path(path, value);
  mark_path(settings, path, value.mark);
  if (path == "workload") resolve_workload(settings, library);
}

void apply(const Assignment& assignment, const Library& library, SweepPosition* position) {
  for (const auto& [path, value] : assignment) {
    if (path.rfind("with.", 0) == 0) {
      position->with.set(path.substr(5), value);
    } else {
      set_marked(path, value, library, &position->settings);
    }
    position->coordinates.emplace_back(path, value);
  }
}

}  // namespace

void resolve_workload(ConfigNode* settings, const Library& library) {
  ConfigNode* workload = settings->find("workload");
  if (workload == nullptr) return;
  if (!workload->is_map() && !workload->is_scalar()) {
    throw SpecError(workload->mark, "'workload' must be a map or the name of a workload");
  }
  *workload = load_workload(*workload, library, 0);
}

void shorten(const ConfigNode& quick, const Library& library, ConfigNode* settings) {
  for (const auto& [path, value] : quick.members) {
    if (path == "seeds" || path == "sweep") continue;
    if (path.rfind("with.", 0) == 0) {
      throw SpecError(value.mark, "'quick' cannot set " + in_quotes(path) +
                                      ": parameters of techniques stay as they are");
    }
    check_path(path, value.mark, "set");
    set_marked(path, value, library, settings);
  }
}

std::vector<SweepPosition> expand_sweep(const ConfigNode& settings, const ConfigNode* sweep,
                                        const Library& library, std::vector<std::string>* swept) {
  std::vector<Axis> axes;
  if (sweep != nullptr && !sweep->is_null()) {
    if (!sweep->is_map()) {
      throw SpecError(sweep->mark, "'sweep' must be a map from dotted paths to lists of values");
    }
    for (const auto& [path, values] : sweep->members) {
      axes.push_back(path == "zip" ? zip_axis(values) : axis_of(path, values));
      for (const auto& [name, value] : axes.back().front()) {
        if (std::find(swept->begin(), swept->end(), name) != swept->end()) {
          throw SpecError(values.mark, "'" + name + "' is swept twice");
        }
        swept->push_back(name);
      }
    }
  }
  SweepPosition start;
  start.settings = settings;
  start.with = ConfigNode::map();
  std::vector<SweepPosition> positions = {std::move(start)};
  for (const Axis& axis : axes) {
    std::vector<SweepPosition> next;
    if (positions.size() * axis.size() > kMaxPositions) {
      throw SpecError(sweep->mark, "the sweep has more than 100000 positions");
    }
    for (const SweepPosition& position : positions) {
      for (const Assignment& assignment : axis) {
        next.push_back(position);
        apply(assignment, library, &next.back());
      }
    }
    positions = std::move(next);
  }
  return positions;
}

}  // namespace servelab
