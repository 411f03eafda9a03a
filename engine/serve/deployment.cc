#include "engine/serve/deployment.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "engine/core/rng.h"
#include "engine/serve/cluster.h"

namespace servelab {
namespace {

// What a slot for adapters of up to `rank` takes: the largest that there is, or the widest that
// there is, widened.
Bytes slot_bytes(std::span<const Adapter> adapters, int rank) {
  Bytes largest = 0;
  int widest = 0;
  for (const Adapter& adapter : adapters) {
    if (adapter.rank > rank) continue;
    largest = std::max(largest, adapter.bytes);
    widest = std::max(widest, adapter.rank);
  }
  return widest == 0 ? 0 : largest * rank / widest;
}

int widest_rank(std::span<const Adapter> adapters) {
  int widest = 0;
  for (const Adapter& adapter : adapters) widest = std::max(widest, adapter.rank);
  return widest;
}

// I13, of one unit; adds what it stores and serves to `stored`, by adapter.
void check_repository(const DeploymentView& view, const Unit& unit, std::size_t i,
                      std::vector<bool>* stored) {
  const std::span<const Adapter> adapters = view.adapter_table();
  const auto check = [i](bool holds, const char* what) {
    if (!holds) throw InvariantError("I13: unit " + std::to_string(i) + " " + what);
  };
  if (unit.repository) {
    const std::vector<AdapterId>& own = *unit.repository;
    check(own.empty() || index(own.back()) < adapters.size(),
          "stores an adapter that is not in the run");
    check(std::adjacent_find(own.begin(), own.end(), std::greater_equal<>()) == own.end(),
          "has a repository that is not in ascending order");
    for (const AdapterId id : own) {
      if (unit.serves(adapters[index(id)].model)) (*stored)[index(id)] = true;
    }
  }
  for (const AdapterId id : unit.adapters) {
    check(unit.stores(id), "holds an adapter that is not in its repository");
  }
  if (unit.repository) return;
  for (std::size_t k = 0; k < adapters.size(); ++k) {
    if (unit.serves(adapters[k].model)) (*stored)[k] = true;
  }
}

std::string mib(Bytes bytes) { return std::to_string(bytes / kMiB) + " MiB"; }

}  // namespace

const ModelMemory& ServedModel::on(int devices) const {
  const auto found = memory.find(devices);
  if (found != memory.end()) return found->second;
  throw SpecError("model " + name + " cannot be spread over " + std::to_string(devices) +
                  " devices");
}

bool Unit::serves(ModelId model) const {
  return std::any_of(models.begin(), models.end(),
                     [model](const UnitModel& entry) { return entry.model == model; });
}

bool Unit::stores(AdapterId adapter) const {
  return !repository || adapter == kBaseModel ||
         std::binary_search(repository->begin(), repository->end(), adapter);
}

// Servers are dealt to one adapter after another from a shuffled deck. When it runs out in the
// middle of an adapter, those that it has already go to the bottom of the next deck.
Repositories draw_repositories(std::size_t adapters, int copies, int replicas, std::uint64_t seed) {
  SL_CHECK(copies >= 0 && copies <= replicas, "an adapter is at most once in each repository");
  RngStream rng(seed, "repositories");
  Repositories repositories(static_cast<std::size_t>(replicas));
  std::vector<std::size_t> deck, own;
  for (std::size_t k = 0; k < adapters; ++k) {
    const auto id = static_cast<AdapterId>(static_cast<std::uint32_t>(k));
    own.clear();
    for (int copy = 0; copy < copies; ++copy) {
      if (deck.empty()) {
        deck.resize(repositories.size());
        std::iota(deck.begin(), deck.end(), std::size_t{0});
        rng.shuffle(&deck);
        std::stable_partition(deck.begin(), deck.end(), [&](std::size_t server) {
          return std::find(own.begin(), own.end(), server) != own.end();
        });
      }
      own.push_back(deck.back());
      repositories[deck.back()].push_back(id);
      deck.pop_back();
    }
  }
  return repositories;
}

DeploymentView::DeploymentView(const ClusterSettings& settings, const Workload& workload)
    : models_(settings.models),
      adapter_table_(workload.adapters),
      devices_(settings.replicas * settings.tensor_parallel),
      device_memory_(settings.device_memory),
      engine_(settings.engine),
      costs_(settings.costs),
      long_term_shares_(workload.adapter_shares),
      base_rates_(settings.models.size()) {
  const auto adapters = static_cast<double>(workload.adapters.size());
  if (long_term_shares_.empty() && !workload.adapters.empty()) {
    long_term_shares_.assign(workload.adapters.size(), 1 / adapters);
  }
  SL_CHECK(long_term_shares_.size() == workload.adapters.size(), "one share per adapter");
  const double span_s =
      workload.requests.empty() ? 0 : to_seconds(workload.requests.back().arrival);
  const auto requests = static_cast<double>(workload.requests.size());
  for (const Request& request : workload.requests) {
    if (span_s > 0) {
      (request.adapter == kBaseModel ? base_rates_[index(request.model)] : adapter_rate_) +=
          1 / span_s;
    }
    mean_prompt_tokens_ += request.prompt_tokens / requests;
    mean_output_tokens_ += request.output_tokens / requests;
  }

  Unit unit;
  unit.devices.resize(static_cast<std::size_t>(settings.tensor_parallel));
  for (std::size_t i = 0; i < models_.size(); ++i) {
    unit.models.push_back({static_cast<ModelId>(i), engine_.device_share, engine_.model_slots > 0});
  }
  unit.model_slots = std::min(engine_.model_slots, static_cast<int>(models_.size()));
  unit.slot_rank = std::max(engine_.slot_rank, widest_rank(workload.adapters));
  const Repositories& repositories = settings.repositories;
  SL_CHECK(
      repositories.empty() || repositories.size() == static_cast<std::size_t>(settings.replicas),
      "each replica has a repository, or none has");
  for (int i = 0; i < settings.replicas; ++i) {
    std::iota(unit.devices.begin(), unit.devices.end(), i * settings.tensor_parallel);
    if (!repositories.empty()) unit.repository = repositories[static_cast<std::size_t>(i)];
    const std::size_t served = unit.repository ? unit.repository->size() : workload.adapters.size();
    const bool all = engine_.cached_adapters || engine_.adapter_slots == 0;
    // Reserved slots are there whether or not there are adapters for them.
    unit.adapter_slots =
        all ? static_cast<int>(served)
            : std::min(engine_.adapter_slots,
                       engine_.slot_rank > 0 ? INT32_MAX : static_cast<int>(served));
    equal_replicas_.units.push_back(unit);
    if (engine_.cached_adapters) hold_all(&equal_replicas_.units.back());
  }
}

void DeploymentView::hold_all(Unit* unit) const {
  unit->adapters.clear();
  for (std::size_t k = 0; k < adapter_table_.size(); ++k) {
    const auto id = static_cast<AdapterId>(static_cast<std::uint32_t>(k));
    if (unit->stores(id)) unit->adapters.push_back(id);
  }
  unit->adapter_slots = static_cast<int>(unit->adapters.size());
}

double DeploymentView::rate(AdapterId adapter) const {
  return adapter_rate_ * long_term_shares_[index(adapter)];
}

double DeploymentView::rate(ModelId model) const { return base_rates_[index(model)]; }

const CostModel& DeploymentView::cost(ModelId model, int devices) const {
  SL_CHECK(costs_ != nullptr, "a run whose policy asks for costs has cost models");
  return costs_(model, devices);
}

UnitMemory DeploymentView::memory(const Unit& unit) const {
  UnitMemory memory;
  const int devices = static_cast<int>(unit.devices.size());
  Bytes largest_turn = 0;
  Bytes reserved = 0;  // of a slot
  Bytes beside_slots = 0;
  int min_kv_tokens = 0;
  memory.blocks_per_page.resize(models_.size());
  for (const UnitModel& entry : unit.models) {
    const ModelMemory& needs = models_[index(entry.model)].on(devices);
    const Bytes page = needs.kv_per_token * engine_.block_tokens;
    SL_CHECK(page > 0, "a KV block has a size");
    memory.block_bytes = std::gcd(memory.block_bytes, page);
    if (entry.takes_turns) {
      largest_turn = std::max(largest_turn, needs.weights);
    } else {
      memory.weights += needs.weights;
    }
    memory.activations = std::max(memory.activations, needs.activations);
    if (needs.slot) reserved = std::max(reserved, needs.slot(unit.slot_rank));
    if (needs.beside_slots) {
      beside_slots += needs.beside_slots(unit.adapter_slots, unit.slot_rank);
    }
    min_kv_tokens = std::max(min_kv_tokens, models_[index(entry.model)].min_kv_tokens);
  }
  for (const UnitModel& entry : unit.models) {
    memory.blocks_per_page[index(entry.model)] =
        static_cast<int>(models_[index(entry.model)].on(devices).kv_per_token *
                         engine_.block_tokens / memory.block_bytes);
  }
  memory.activations += beside_slots;
  memory.models.slots = unit.model_slots;
  memory.models.slot_bytes = largest_turn;
  memory.adapters.memory = engine_.cached_adapters ? AdapterMemory::kSlots : engine_.adapter_memory;
  memory.adapters.block_bytes = memory.block_bytes;
  Bytes left =
      device_memory_ - memory.activations - memory.weights - unit.model_slots * largest_turn;
  if (memory.adapters.memory == AdapterMemory::kSlots) {
    memory.adapters.slots = unit.adapter_slots;
    memory.adapters.slot_bytes =
        reserved > 0 ? reserved : slot_bytes(adapter_table_, unit.slot_rank);
    if (!engine_.cached_adapters) left -= memory.adapters.slots * memory.adapters.slot_bytes;
  }
  if (left > 0 && memory.block_bytes > 0) {
    memory.kv_blocks = std::min<std::int64_t>(left / memory.block_bytes, INT32_MAX - 1);
  }
  if (memory.kv_blocks < 1) {
    memory.refused = "device memory is too small: " + mib(device_memory_) + " for " +
                     mib(memory.weights + unit.model_slots * largest_turn) + " of weights, " +
                     mib(memory.activations) + " of activations and " +
                     std::to_string(memory.adapters.slots) + " adapter slots of " +
                     mib(memory.adapters.slot_bytes) +
                     " leaves no KV block; lower engine.adapter_slots or the model's size";
  } else if (const std::int64_t tokens = memory.kv_blocks * engine_.block_tokens;
             tokens < min_kv_tokens) {
    memory.refused = "device memory is too small: it leaves KV of " + std::to_string(tokens) +
                     " tokens, fewer than the " + std::to_string(min_kv_tokens) +
                     " of one request; lower engine.adapter_slots, engine.slot_rank or "
                     "engine.max_model_len";
  }
  return memory;
}

void check_deployment(const DeploymentView& view, const Deployment& deployment) {
  std::vector<bool> used(static_cast<std::size_t>(view.devices()));
  std::vector<bool> served(view.models().size());
  std::vector<bool> stored(view.adapter_table().size());
  for (std::size_t i = 0; i < deployment.units.size(); ++i) {
    const Unit& unit = deployment.units[i];
    if (unit.off) continue;
    const auto check = [i](bool holds, const char* what) {
      if (!holds) throw InvariantError("I11: unit " + std::to_string(i) + " " + what);
    };
    check(!unit.devices.empty(), "has no device");
    for (const int device : unit.devices) {
      check(device >= 0 && device < view.devices(), "names a device that is not there");
      check(!used[static_cast<std::size_t>(device)], "names a device that another unit has");
      used[static_cast<std::size_t>(device)] = true;
    }
    int turns = 0;
    std::set<ModelId> models;
    check(!unit.models.empty(), "serves no model");
    for (const UnitModel& entry : unit.models) {
      check(index(entry.model) < served.size(), "names a model that is not in the run");
      check(models.insert(entry.model).second, "names a model twice");
      served[index(entry.model)] = true;
      turns += entry.takes_turns ? 1 : 0;
    }
    check(turns == 0 || unit.model_slots > 0, "has models that take turns, and no place for them");
    check(unit.adapter_slots >= 0 && unit.slot_rank >= 0, "has a negative number of slots");
    std::set<AdapterId> held;
    for (const AdapterId id : unit.adapters) {
      check(index(id) < view.adapter_table().size(), "holds an adapter that is not in the run");
      check(unit.serves(view.adapter_table()[index(id)].model),
            "holds an adapter of a model that it does not serve");
      check(held.insert(id).second, "holds an adapter twice");
    }
    check_repository(view, unit, i, &stored);
  }
  SL_CHECK(std::find(used.begin(), used.end(), true) != used.end(), "I11: every unit is off");
  SL_CHECK(std::find(served.begin(), served.end(), false) == served.end(),
           "I11: a model is served nowhere");
  const auto nowhere = std::find(stored.begin(), stored.end(), false);
  if (nowhere == stored.end()) return;
  const auto k = static_cast<std::size_t>(nowhere - stored.begin());
  throw InvariantError("I13: adapter " + view.adapter_table()[k].name +
                       " is in no repository where its model is served");
}

}  // namespace servelab
