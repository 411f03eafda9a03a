// Placement of adapters on as few GPUs as serve them (placement paper, 7 and 8.4), and what it is
// compared with: each GPU gets its adapters, A_max and S_max before the run, and requests go to the
// GPU that has their adapter. GPUs without adapters are off.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "baselines/shared/adapter_packing.h"
#include "baselines/shared/burst_tolerance.h"
#include "engine/predict/predictor.h"
#include "engine/serve/policy.h"

namespace servelab {
namespace {

// T_max of a unit of `view`; what was asked once is remembered.
KvTokens kv_tokens_of(const DeploymentView& view) {
  auto known = std::make_shared<std::map<std::pair<int, int>, std::int64_t>>();
  return [&view, known](int slots, int rank) {
    const auto [at, is_new] = known->emplace(std::pair(slots, rank), 0);
    if (is_new) {
      Unit unit = view.equal_replicas().units.front();
      unit.adapter_slots = slots;
      unit.slot_rank = rank;
      const UnitMemory memory = view.memory(unit);
      if (memory.refused.empty()) at->second = memory.kv_blocks * view.engine().block_tokens;
    }
    return at->second;
  };
}

PackingProblem problem_of(const DeploymentView& view) {
  PackingProblem problem;
  for (std::size_t i = 0; i < view.adapter_table().size(); ++i) {
    const auto id = static_cast<AdapterId>(static_cast<std::uint32_t>(i));
    problem.adapters.push_back({id, view.adapter_table()[i].rank, view.rate(id)});
  }
  problem.gpus = static_cast<int>(view.equal_replicas().units.size());
  problem.kv_tokens = kv_tokens_of(view);
  return problem;
}

// The spec's replicas, each with what `packing` says; one without adapters is off.
Deployment deploy_packed(const DeploymentView& view, const Packing& packing) {
  Deployment deployment = view.equal_replicas();
  deployment.refused = packing.refused;
  for (std::size_t i = 0; i < packing.gpus.size(); ++i) {
    Unit& unit = deployment.units[i];
    unit.repository = packing.gpus[i].adapters;
    unit.adapter_slots = packing.gpus[i].slots;
    unit.slot_rank = packing.gpus[i].slot_rank;
    unit.off = packing.gpus[i].adapters.empty();
  }
  return deployment;
}

// Requests go to the unit of their adapter, in turn where several have it.
class Placed : public ClusterPolicy {
 public:
  Capabilities capabilities() const override { return {.places_adapters = true}; }
  Deployment deploy(const DeploymentView& view) override {
    if (view.adapter_table().empty()) {
      Deployment nothing;
      nothing.refused = "a placement needs adapters; the workload has none";
      return nothing;
    }
    turns_.assign(view.adapter_table().size() + 1, 0);  // the base model last
    return place(view);
  }
  ReplicaId route(const RoutedRequest& request, const ClusterView& view) override {
    const auto candidates = view.candidates(request);
    std::uint32_t& turn =
        request.adapter == kBaseModel ? turns_.back() : turns_[index(request.adapter)];
    return candidates[turn++ % candidates.size()]->id();
  }

 protected:
  virtual Deployment place(const DeploymentView& view) const = 0;

 private:
  std::vector<std::uint32_t> turns_;
};

// By models that `servelab train` fitted. Effective settings have the file's digest, not its name.
class ByPredictor : public Placed {
 public:
  void fields(ParamFields& f) override {
    f.add("predictor", &file_, "a file in base/predictor/, or a path (`servelab train`)")
        .required()
        .file("predictor", [this](const ConfigNode& name) {
          predictor_ = load_predictor(name.scalar);
          digest_ = predictor_->digest;
        });
    f.add("predictor_digest", &digest_, "of the predictor's contents, as results record it");
    f.add("margin", &margin_,
          "adapters are placed as if rates were higher by this share; -1: by the one that the "
          "predictor was calibrated to")
        .range(-1, 10);
  }

 protected:
  PackingModels with_margin(PackingModels models) const {
    if (margin_ >= 0) models.margin = margin_;
    return models;
  }
  const Predictor& predictor() const {
    if (predictor_ == nullptr) {
      if (digest_.empty()) throw SpecError("name a predictor (`route_with: {predictor: FILE}`)");
      predictor_ = predictor_of(digest_);
    }
    return *predictor_;
  }

 private:
  std::string file_, digest_;
  double margin_ = -1;
  mutable std::shared_ptr<const Predictor> predictor_;
};

class Proposed : public ByPredictor {
 public:
  std::string summary() const override {
    return "as few GPUs as a random forest says serve the adapters (placement paper, 7)";
  }
  void fields(ParamFields& f) override {
    ByPredictor::fields(f);
    f.add("final", &final_,
          "when the last adapters do not pass their test: an error, or the GPUs "
          "left are tried")
        .one_of({"error", "retry"});
  }

 protected:
  virtual PackingModels models() const { return forests_of(predictor()); }
  Deployment place(const DeploymentView& view) const override {
    return deploy_packed(view, pack_greedily(problem_of(view), with_margin(models()),
                                             {.retry_final = final_ == "retry"}));
  }

 private:
  std::string final_ = "error";
};

class ProposedFast final : public Proposed {
 public:
  std::string summary() const override {
    return "as few GPUs as a tree of at most 32 rules says serve the adapters";
  }

 protected:
  PackingModels models() const override { return rules_of(predictor()); }
};

class ProposedLat final : public ByPredictor {
 public:
  std::string summary() const override {
    return "adapters over all GPUs by rate, checked by a random forest (placement paper, 8.4.4)";
  }

 protected:
  Deployment place(const DeploymentView& view) const override {
    return deploy_packed(view,
                         pack_for_latency(problem_of(view), with_margin(forests_of(predictor()))));
  }
};

// Requests per second that the base model alone serves on one unit: steps of as many decodes as KV,
// batch and tokens allow, with the prefills that keep them coming.
double backbone_requests_per_s(const DeploymentView& view) {
  Unit unit = view.equal_replicas().units.front();
  unit.adapter_slots = 0;
  const double prompt = view.mean_prompt_tokens();
  const double output = std::max(1.0, view.mean_output_tokens());
  const double context = prompt + output / 2;
  const auto kv_tokens =
      static_cast<double>(view.memory(unit).kv_blocks * view.engine().block_tokens);
  const double decodes = std::floor(std::max(
      1.0, std::min({kv_tokens / context, static_cast<double>(view.engine().limits.max_batch),
                     static_cast<double>(view.engine().limits.max_batch_tokens) /
                         (1 + prompt / output)})));
  BatchShape batch;
  batch.decode_requests = static_cast<std::int64_t>(decodes);
  batch.decode_context = static_cast<std::int64_t>(decodes * context);
  batch.prefill_tokens = batch.prefill_context =
      static_cast<std::int64_t>(decodes * prompt / output);
  batch.prefill_requests = std::max<std::int64_t>(1, std::lround(decodes / output));
  batch.prefill_pairs =
      static_cast<std::int64_t>(static_cast<double>(batch.prefill_tokens) * (prompt + 1) / 2);
  batch.tokens = batch.decode_requests + batch.prefill_tokens;
  batch.sampled = batch.decode_requests + batch.prefill_requests;
  const TimeNs step = view.cost({}, static_cast<int>(unit.devices.size()))
                          .step(batch, Exec::kUnmerged, LoraKernel::kSgmv)
                          .total();
  return decodes / output / to_seconds(step);
}

// What `servelab place` decided, or anyone else: adapters by name.
class AsPlanned final : public Placed {
 public:
  std::string summary() const override {
    return "as a plan says (`servelab place`): each adapter's GPU, and slots by GPU";
  }
  void fields(ParamFields& f) override {
    f.add("plan", &file_, "a file that `servelab place` wrote")
        .file("plan", [this](const ConfigNode& name) { read(name); });
    f.add("adapters", &names_, "their names, in place of a plan");
    f.add("gpu", &gpus_, "of each of these adapters, from 0");
    f.add("slots", &slots_, "A_max by GPU");
  }

 protected:
  Deployment place(const DeploymentView& view) const override {
    const std::size_t gpus = view.equal_replicas().units.size();
    if (names_.size() != gpus_.size()) throw SpecError("a plan has one GPU for each adapter");
    std::map<std::string, std::size_t> gpu_of;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      const double gpu = gpus_[i];
      if (!(gpu >= 0) || gpu != std::floor(gpu) || gpu >= static_cast<double>(gpus) ||
          gpu >= static_cast<double>(slots_.size())) {
        throw SpecError("the plan's GPU of adapter '" + names_[i] + "' is none of the " +
                        std::to_string(std::min(gpus, slots_.size())) + " that there are");
      }
      if (!gpu_of.emplace(names_[i], static_cast<std::size_t>(gpu)).second) {
        throw SpecError("the plan has adapter '" + names_[i] + "' twice");
      }
    }
    Packing packing;
    packing.gpus.resize(gpus);
    for (std::size_t i = 0; i < view.adapter_table().size(); ++i) {
      const Adapter& adapter = view.adapter_table()[i];
      const auto found = gpu_of.find(adapter.name);
      if (found == gpu_of.end()) {
        packing.refused = "the plan says nothing of adapter '" + adapter.name + "'";
        break;
      }
      PackedGpu& gpu = packing.gpus[found->second];
      gpu.adapters.push_back(static_cast<AdapterId>(static_cast<std::uint32_t>(i)));
      gpu.slots = static_cast<int>(std::clamp(slots_[found->second], 0.0, 1e6));
      gpu.slot_rank = std::max(gpu.slot_rank, adapter.rank);
    }
    return deploy_packed(view, packing);
  }

 private:
  void read(const ConfigNode& name) {
    const ConfigNode plan = parse_yaml_file(name.scalar);
    const ConfigNode* adapters = plan.find("adapters");
    const ConfigNode* slots = plan.find("slots");
    if (adapters == nullptr || !adapters->is_map() || slots == nullptr) {
      throw SpecError(plan.mark, "a plan has 'adapters', a map to GPUs, and 'slots', a list");
    }
    ConfigNode gpus = ConfigNode::list();
    for (const ConfigMember& member : adapters->members) {
      names_.push_back(member.key);
      gpus.items.push_back(member.value);
    }
    ParamFields f;
    f.add("adapters", &gpus_, "GPUs");
    f.add("slots", &slots_, "A_max");
    f.all()[0].assign(gpus);
    f.all()[1].assign(*slots);
  }

  std::string file_;
  std::vector<std::string> names_;
  std::vector<double> gpus_, slots_;
};

class MaxBase : public Placed {
 public:
  std::string summary() const override {
    return "GPUs filled to what the base model alone serves, A_max = adapters there (8.4.1)";
  }
  void fields(ParamFields& f) override {
    f.add("max_requests_per_s", &most_,
          "that the base model alone serves on one GPU; 0: by the cost model")
        .range(0, 1e6);
  }

 protected:
  virtual double slot_share() const { return 1; }
  Deployment place(const DeploymentView& view) const override {
    return deploy_packed(
        view, pack_by_backbone(problem_of(view), most_ > 0 ? most_ : backbone_requests_per_s(view),
                               slot_share()));
  }

 private:
  double most_ = 0;
};

class MaxBaseHalf final : public MaxBase {
 public:
  std::string summary() const override { return "the same, A_max = half of the adapters there"; }

 protected:
  double slot_share() const override { return 0.5; }
};

class RandomPlacement final : public Placed {
 public:
  std::string summary() const override {
    return "any GPU for each adapter, any A_max up to the adapters there (placement paper, 8.4.2)";
  }
  void fields(ParamFields& f) override {
    f.add("placement_seed", &seed_, "of the draw").range(0, 1e9);
  }

 protected:
  Deployment place(const DeploymentView& view) const override {
    return deploy_packed(view, pack_at_random(problem_of(view), static_cast<std::uint64_t>(seed_)));
  }

 private:
  std::int64_t seed_ = 0;
};

// dLoRA's proactive placement alone (placement paper, 8.4.3): copies by burst tolerance, requests
// to them in turn, no dispatch by pending time and no migration; A_max = adapters there.
class DloraPlacement final : public Placed {
 public:
  std::string summary() const override {
    return "dLoRA's proactive placement alone: all GPUs, adapters in as many copies as help";
  }

 protected:
  Deployment place(const DeploymentView& view) const override {
    const PackingProblem known = problem_of(view);
    int widest = 0;
    for (const AdapterDemand& adapter : known.adapters) widest = std::max(widest, adapter.rank);
    const std::int64_t without = known.kv_tokens(0, widest);
    PlacementProblem problem;
    problem.load.assign(view.long_term_shares().begin(), view.long_term_shares().end());
    problem.replicas = static_cast<std::size_t>(known.gpus);
    problem.replica_blocks = without;
    while (problem.preload_adapters < static_cast<std::int64_t>(known.adapters.size()) &&
           known.kv_tokens(static_cast<int>(problem.preload_adapters) + 1, widest) > 0) {
      ++problem.preload_adapters;
    }
    const std::int64_t left = known.kv_tokens(static_cast<int>(problem.preload_adapters), widest);
    const std::int64_t slot =
        problem.preload_adapters > 0
            ? std::max<std::int64_t>(1, (without - left) / problem.preload_adapters)
            : 1;
    problem.adapter_blocks.assign(known.adapters.size(), slot);
    problem.preload_blocks = problem.replica_blocks;
    Packing packing;
    std::vector<bool> has_copy(known.adapters.size());
    for (const std::vector<AdapterId>& adapters : place_by_burst_tolerance(problem)) {
      PackedGpu gpu;
      gpu.adapters = adapters;
      std::sort(gpu.adapters.begin(), gpu.adapters.end());
      gpu.slots = static_cast<int>(adapters.size());
      for (const AdapterId id : adapters) {
        has_copy[index(id)] = true;
        gpu.slot_rank = std::max(gpu.slot_rank, view.adapter_table()[index(id)].rank);
      }
      packing.gpus.push_back(std::move(gpu));
    }
    const auto left_out = std::count(has_copy.begin(), has_copy.end(), false);
    if (left_out > 0) {
      packing.refused = "memory: " + std::to_string(left_out) + " adapters find no slot";
    }
    return deploy_packed(view, packing);
  }
};

}  // namespace
}  // namespace servelab

SERVELAB_CLUSTER_POLICY("proposed", Proposed)
SERVELAB_CLUSTER_POLICY("proposed-fast", ProposedFast)
SERVELAB_CLUSTER_POLICY("proposed-lat", ProposedLat)
SERVELAB_CLUSTER_POLICY("as-planned", AsPlanned)
SERVELAB_CLUSTER_POLICY("maxbase", MaxBase)
SERVELAB_CLUSTER_POLICY("maxbase*", MaxBaseHalf)
SERVELAB_CLUSTER_POLICY("random-placement", RandomPlacement)
SERVELAB_CLUSTER_POLICY("dlora-placement", DloraPlacement)
