#include "engine/spec/sweep.h"

#include <algorithm>
#include <map>
#include <set>

#include "engine/core/digest.h"
#include "engine/core/params.h"
#include "engine/spec/spec_text.h"

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
    over.erase("extends");
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

// Indices of the techniques that run at the positions of a map; all without `techniques:`.
std::vector<std::size_t> chosen_techniques(const ConfigNode& map,
                                           const std::vector<std::string>& labels) {
  std::vector<std::size_t> chosen;
  const ConfigNode* node = map.find("techniques");
  if (node == nullptr) {
    for (std::size_t i = 0; i < labels.size(); ++i) chosen.push_back(i);
    return chosen;
  }
  if (!node->is_list() || node->items.empty()) {
    throw SpecError(node->mark, "'techniques' of a sweep must be a list of at least one label");
  }
  for (const ConfigNode& item : node->items) {
    const auto at = std::find(labels.begin(), labels.end(), item.scalar);
    if (!item.is_scalar() || at == labels.end()) {
      throw SpecError(item.mark, "no technique of this spec is labelled " + in_quotes(item.scalar) +
                                     "; " + suggest(item.scalar, labels));
    }
    chosen.push_back(static_cast<std::size_t>(at - labels.begin()));
  }
  std::sort(chosen.begin(), chosen.end());
  if (std::adjacent_find(chosen.begin(), chosen.end()) != chosen.end()) {
    throw SpecError(node->mark, "'techniques' of a sweep has a label twice");
  }
  return chosen;
}

std::string identity_of(const Assignment& assignment) {
  std::string identity;
  for (const auto& [path, value] : assignment) {
    identity += path + '=' + value_identity(value) + '\n';
  }
  return identity;
}

// `sample:` of a map: the share of its positions that are kept, as if drawn. What is drawn depends
// on a position alone, so that those of a larger share contain those of a smaller one.
class Sample {
 public:
  explicit Sample(const ConfigNode& map) {
    const ConfigNode* node = map.find("sample");
    if (node == nullptr) return;
    ParamFields fields;
    fields.add("sample", &share_, "share of the positions").range(1e-6, 1);
    fields.all().front().assign(*node);
  }
  // `identity`: what identity_of() says of its assignments, one after another.
  bool keeps(const std::string& identity) const {
    if (share_ >= 1) return true;
    const std::uint64_t draw = std::stoull(sha256_hex(identity).substr(0, 13), nullptr, 16);
    return static_cast<double>(draw) < share_ * 0x1p52;
  }

 private:
  double share_ = 1;
};

// The positions of one map: its axes crossed, the first one slowest.
std::vector<SweepPosition> expand_map(const ConfigNode& map, const SweepPosition& start,
                                      const Library& library, std::vector<std::string>* swept) {
  if (!map.is_map()) {
    throw SpecError(map.mark,
                    "'sweep' must be a map from dotted paths to lists of values, or a list of "
                    "such maps");
  }
  std::vector<Axis> axes;
  std::size_t count = 1;
  for (const auto& [path, values] : map.members) {
    if (path == "techniques" || path == "sample") continue;
    axes.push_back(path == "zip" ? zip_axis(values) : axis_of(path, values));
    for (const auto& [name, value] : axes.back().front()) {
      if (std::find(swept->begin(), swept->end(), name) != swept->end()) {
        throw SpecError(values.mark, "'" + name + "' is swept twice");
      }
      swept->push_back(name);
    }
    count *= axes.back().size();
    if (count > kMaxPositions) {
      throw SpecError(map.mark, "the sweep has more than 100000 positions");
    }
  }
  const Sample sample(map);
  std::vector<std::vector<std::string>> identities(axes.size());
  for (std::size_t axis = 0; axis < axes.size(); ++axis) {
    for (const Assignment& assignment : axes[axis]) {
      identities[axis].push_back(identity_of(assignment));
    }
  }
  std::vector<SweepPosition> positions;
  std::vector<std::size_t> at(axes.size());
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t rest = i;
    for (std::size_t axis = axes.size(); axis-- > 0; rest /= axes[axis].size()) {
      at[axis] = rest % axes[axis].size();
    }
    std::string identity;
    for (std::size_t axis = 0; axis < axes.size(); ++axis) identity += identities[axis][at[axis]];
    if (!sample.keeps(identity)) continue;
    positions.push_back(start);
    for (std::size_t axis = 0; axis < axes.size(); ++axis) {
      apply(axes[axis][at[axis]], library, &positions.back());
    }
  }
  return positions;
}

// Puts coordinates into the order of `swept`; they must be of the same paths.
void arrange(const std::vector<std::string>& swept, const SourceMark& mark,
             SweepPosition* position) {
  Assignment ordered;
  for (const std::string& path : swept) {
    for (const auto& coordinate : position->coordinates) {
      if (coordinate.first == path) ordered.push_back(coordinate);
    }
  }
  if (ordered.size() != swept.size() || ordered.size() != position->coordinates.size()) {
    throw SpecError(mark, "every map of 'sweep' must set the same paths as the first one");
  }
  position->coordinates = std::move(ordered);
}

// Joins the positions of several maps: an equal position is one, with the techniques of both.
class JoinedPositions {
 public:
  void add(SweepPosition position, const SourceMark& mark) {
    std::string identity;
    for (const auto& [path, value] : position.coordinates) identity += value_identity(value) + '\n';
    const auto [at, is_new] = places_.emplace(identity, positions.size());
    if (is_new) {
      positions.push_back(std::move(position));
      return;
    }
    std::vector<std::size_t>& known = positions[at->second].techniques;
    for (const std::size_t technique : position.techniques) {
      if (std::find(known.begin(), known.end(), technique) != known.end()) {
        throw SpecError(mark, "two maps of 'sweep' have " + in_quotes(position.text()) +
                                  " for the same technique");
      }
      known.push_back(technique);
    }
    std::sort(known.begin(), known.end());
  }
  std::vector<SweepPosition> positions;

 private:
  std::map<std::string, std::size_t> places_;
};

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
                                        const std::vector<std::string>& labels,
                                        const Library& library, std::vector<std::string>* swept) {
  std::vector<ConfigNode> maps = {ConfigNode::map()};
  if (sweep != nullptr && !sweep->is_null()) {
    maps = sweep->is_list() ? sweep->items : std::vector<ConfigNode>{*sweep};
    if (maps.empty()) throw SpecError(sweep->mark, "'sweep' has no values");
  }
  JoinedPositions joined;
  for (const ConfigNode& map : maps) {
    SweepPosition start;
    start.settings = settings;
    start.with = ConfigNode::map();
    start.techniques = chosen_techniques(map, labels);
    std::vector<std::string> paths;
    std::vector<SweepPosition> positions = expand_map(map, start, library, &paths);
    if (&map == &maps.front()) *swept = paths;
    for (SweepPosition& position : positions) {
      arrange(*swept, map.mark, &position);
      joined.add(std::move(position), map.mark);
    }
  }
  if (joined.positions.empty()) {
    throw SpecError(sweep->mark, "'sample' leaves no position of the sweep; raise it");
  }
  return std::move(joined.positions);
}

}  // namespace servelab
