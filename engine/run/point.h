// One point: one technique at one sweep position with one seed. Resolved, keyed and run here, for
// the runner, tests and benchmarks alike.
#ifndef SERVELAB_RUN_POINT_H_
#define SERVELAB_RUN_POINT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/backend/cost/hardware.h"
#include "engine/core/config_node.h"
#include "engine/model/model_config.h"
#include "engine/record/point_file.h"
#include "engine/run/processor_share.h"
#include "engine/serve/cluster.h"
#include "engine/serve/policy.h"
#include "engine/spec/spec.h"
#include "engine/workload/workload.h"

namespace servelab {

namespace ranks {
class RankGroup;
}

// Memory that a request takes while a point runs and is written: its workload entry, its record
// and the columns of the file.
inline constexpr int kBytesPerRequest = 250;

// Everything that a run depends on, besides the workload: checked and with defaults filled in.
struct PointSettings {
  ModelConfig model;
  HardwareProfile hardware;
  std::string backend = "twin";
  ClusterSection cluster;
  LoraSection lora;
  RecordSection record;
  RuntimeSection runtime;
  EngineSettings engine;  // after the technique's wishes and its entry's overrides
  std::string technique_id;
  std::shared_ptr<const Technique> technique;  // with its parameters
  ConfigNode technique_params;                 // effective
  std::string route;                           // cluster policy
  ConfigNode route_params;                     // effective
  ConfigNode workload;                         // as written
  ConfigNode requested;                        // this point's settings as written
  std::int64_t seed = 0;
  bool step_by_step = false;  // as ClusterSettings; changes no result, and so no key

  int max_model_len() const;  // tokens of one request: the model's limit, or the engine's below it
};

// Settings of one technique at one position. Throws SpecError with the place of what is wrong.
PointSettings resolve_point(const Spec& spec, const SweepPosition& position,
                            const TechniqueEntry& entry, std::int64_t seed);

// The workload of a point; the same for every technique at the same position and seed.
// Without `requests`: what its settings lead to alone (WorkloadContext::requests).
BuiltWorkload build_point_workload(const PointSettings& settings, const std::string& data_dir,
                                   bool requests = true);

// All settings after defaults, as recorded, with the workload that they led to.
ConfigNode effective_settings(const PointSettings& settings, const BuiltWorkload& workload);

// 16 hexadecimal digits that name the point: a hash of the effective settings, the workload's
// sources, the result schema and the build.
std::string point_key(const ConfigNode& effective, const BuiltWorkload& workload);

// A new cluster policy of the point, with its parameters.
std::unique_ptr<ClusterPolicy> point_cluster_policy(const PointSettings& settings);

// Finds profiles that another extends in `library`, which must live as long.
ProfileFinder hardware_in(const Library& library);

// What a cluster of the point is made from, but for cost models. `settings` outlives it.
ClusterSettings point_cluster(const PointSettings& settings, const Workload& workload);

// The cost model of the point's hardware profile, with the model spread over so many devices.
// SpecError when they do not go together.
std::unique_ptr<CostModel> point_cost_model(const PointSettings& settings, int devices);

struct PointResult {
  RunRecord record;
  Summary summary;
  double wall_s = 0;
  std::optional<ProcessorShare> processor;  // in wall-clock time, where the system says
};

// Whether a point is INVALID because of the machine that it ran on at that moment, and not of what
// its settings ask for: the load generator lagged, memory was short, or others took the processor.
bool is_of_machine(const std::string& reasons);

// Whether a backend really computes, in wall-clock time: its points run one at a time.
bool is_real(const std::string& backend);

// Runs a point on its backend. A model and adapters that do not fit the device make an INVALID
// record, as such points belong to some figures. `group` is the processes for points that take
// several devices; null: they are threads here. `processor` tells what a run in wall-clock time
// got. Throws InvariantError for a broken technique.
PointResult run_point(
    const PointSettings& settings, const Workload& workload, ranks::RankGroup* group = nullptr,
    const ProcessorReader& processor = [] { return processor_times(); });

// Runs the point again in virtual time, its events delivered when `original` says (from a run on a
// real backend). Throws SpecError where the run cannot follow them.
RunRecord replay_point(const PointSettings& settings, const Workload& workload,
                       const RunRecord& original);

// What the file of a point says of it, but for its key, its effective settings and its context.
PointIdentity point_identity(const std::string& spec_id, const SweepPosition& position,
                             const PointSettings& settings, const BuiltWorkload& workload);

// JSON list of the workload's sources, and their names on one line ("generated" without any).
std::string sources_json(const BuiltWorkload& workload);
std::string trace_names(const BuiltWorkload& workload);

}  // namespace servelab

#endif  // SERVELAB_RUN_POINT_H_
