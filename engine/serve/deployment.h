// The one decision that is made before anything is built: which units there are, on which devices,
// with which models and adapters, and how their memory is divided. Everything that comes later
// reads it. ClusterPolicy::deploy() makes it; what it does not decide stays as the spec says.
#ifndef SERVELAB_SERVE_DEPLOYMENT_H_
#define SERVELAB_SERVE_DEPLOYMENT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/core/ids.h"
#include "engine/core/units.h"
#include "engine/serve/cost.h"
#include "engine/serve/request.h"
#include "engine/serve/weight_pool.h"

namespace servelab {

struct ClusterSettings;
struct EngineSettings;

// What a model takes of each device that it is spread over.
struct ModelMemory {
  Bytes weights = 0;
  Bytes activations = 0;  // of the largest step
  Bytes kv_per_token = 0;
  // Of an adapter slot that is reserved for a rank; none: slots are as adapters need.
  std::function<Bytes(int rank)> slot = {};
  // What so many slots of that rank take in addition; none: nothing.
  std::function<Bytes(int slots, int rank)> beside_slots = {};
};

// A model of the run. Its id is its place in the run's table.
struct ServedModel {
  std::string name;
  int max_context_tokens = 4096;
  int min_kv_tokens = 0;              // below which an engine does not start
  std::map<int, ModelMemory> memory;  // by how many devices share it (tensor parallelism)

  // Throws SpecError where it cannot be shared by so many.
  const ModelMemory& on(int devices) const;
};

// A model on a unit.
struct UnitModel {
  ModelId model{};
  double share = 1;          // of the devices' SMs; a plan's own counts, and starts as the first's
  bool takes_turns = false;  // its weights come and go, in one of the unit's `model_slots`
};

// The adapters of each replica's local repository, ascending.
using Repositories = std::vector<std::vector<AdapterId>>;

// Groups drawn at random: each adapter in `copies` of the repositories (at most `replicas`), whose
// sizes differ by at most one. The same for the same numbers.
Repositories draw_repositories(std::size_t adapters, int copies, int replicas, std::uint64_t seed);

// Devices that run the steps of some models together: what a Replica is made from.
struct Unit {
  std::vector<int> devices;         // of the run's; each model is spread over all of them
  std::vector<UnitModel> models;    // ascending by id
  int model_slots = 0;              // places for the weights of models that take turns
  std::vector<AdapterId> adapters;  // held before the first request, in the order of loading
  int adapter_slots = 0;  // A_max: adapters on the device at once; not under unified paging
  int slot_rank = 0;      // S_max: the widest rank that a slot takes
  // The adapters that it can load, ascending; none: every adapter of its models.
  std::optional<std::vector<AdapterId>> repository;
  bool off = false;  // serves nothing; has no replica

  bool serves(ModelId model) const;
  bool stores(AdapterId adapter) const;  // kBaseModel: yes
};

// Replica i is the i-th unit that is not off.
struct Deployment {
  std::vector<Unit> units;
  std::string refused;  // why nothing fits, in one line; the run is then INVALID
};

// How one unit's memory would be divided, on each of its devices.
struct UnitMemory {
  Bytes weights = 0;  // of models that are always there
  Bytes activations = 0;
  WeightPool<ModelId>::Options models;  // those that take turns
  WeightPool<AdapterId>::Options adapters;
  Bytes block_bytes = 0;             // of one KV block
  std::int64_t kv_blocks = 0;        // what is left; may be 0
  std::vector<int> blocks_per_page;  // by model: KV blocks for block_tokens of its tokens
  std::string refused;               // why it cannot serve at all; empty where it can
};

// What an operator knows before the first request arrives.
class DeploymentView {
 public:
  // Both outlive it.
  DeploymentView(const ClusterSettings& settings, const Workload& workload);

  std::span<const ServedModel> models() const { return models_; }
  std::span<const Adapter> adapter_table() const { return adapter_table_; }
  int devices() const { return devices_; }
  Bytes device_memory() const { return device_memory_; }  // of one, that the engine may use
  const EngineSettings& engine() const { return engine_; }

  // Each adapter's share of the arrivals in the long term, as an operator knows it from history;
  // sums to 1 over the adapters. The requests to come are drawn from these shares, so that a run
  // may differ from them.
  std::span<const double> long_term_shares() const { return long_term_shares_; }
  // Requests per second over the run, as forecast: those for an adapter, and those for a model
  // without one. 0 where all arrive at once.
  double rate(AdapterId adapter) const;
  double rate(ModelId model) const;
  // What steps of a model would take on so many devices.
  const CostModel& cost(ModelId model, int devices) const;
  double mean_prompt_tokens() const { return mean_prompt_tokens_; }
  double mean_output_tokens() const { return mean_output_tokens_; }

  // The spec's replicas: each with every model, its repository and nothing held before the first
  // request. Adapters' bytes are those on as many devices as these have.
  const Deployment& equal_replicas() const { return equal_replicas_; }
  UnitMemory memory(const Unit& unit) const;
  // The oracle of engine.cached_adapters: a unit holds all that it stores.
  void hold_all(Unit* unit) const;

 private:
  std::span<const ServedModel> models_;
  std::span<const Adapter> adapter_table_;
  int devices_ = 1;
  Bytes device_memory_ = 0;
  const EngineSettings& engine_;
  const CostModels& costs_;
  std::vector<double> long_term_shares_;
  double adapter_rate_ = 0;         // of all adapters together
  std::vector<double> base_rates_;  // by model
  double mean_prompt_tokens_ = 0;
  double mean_output_tokens_ = 0;
  Deployment equal_replicas_;
};

// I11: throws InvariantError, naming the unit, unless `deployment` can be built from what `view`
// has: devices that are there, each used once; models that exist, each served somewhere; adapters
// that exist, each held once and where its model is. I13: likewise unless every adapter is in a
// repository where its model is served, and held only where it is in the repository.
void check_deployment(const DeploymentView& view, const Deployment& deployment);

}  // namespace servelab

#endif  // SERVELAB_SERVE_DEPLOYMENT_H_
