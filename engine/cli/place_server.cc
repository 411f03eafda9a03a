#include "engine/cli/place_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/core/config_node.h"
#include "engine/spec/spec.h"

namespace servelab {
namespace {

constexpr int kVllmRanks[] = {8, 16, 32, 64, 128, 256, 320, 512};

Spec spec_of(const Predictor& predictor, const Library& library) {
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

}  // namespace

int vllm_rank(int rank) {
  return *std::find_if(std::begin(kVllmRanks), std::end(kVllmRanks),
                       [rank](int allowed) { return allowed >= rank; });
}

PlacedServer::PlacedServer(const Predictor& predictor, const Library& library,
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

std::int64_t PlacedServer::kv_tokens(int slots, int rank) const {
  Unit unit = view_->equal_replicas().units.front();
  unit.adapter_slots = slots;
  unit.slot_rank = vllm_rank(rank);
  const UnitMemory memory = view_->memory(unit);
  return memory.refused.empty() ? memory.kv_blocks * settings_.engine.block_tokens : 0;
}

PointSettings PlacedServer::run_as(const std::vector<NamedAdapter>& adapters,
                                   const Packing& packing, std::int64_t seed) const {
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

}  // namespace servelab
