#include "baselines/shared/burst_tolerance.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace servelab {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A placement that grows copy by copy, with every adapter's tolerance kept up to date.
class Growing {
 public:
  explicit Growing(const PlacementProblem& problem)
      : problem_(problem),
        placement_(problem.replicas),
        free_(problem.replicas, problem.replica_blocks),
        load_(problem.replicas, 0.0),
        copies_(problem.load.size(), 0),
        capacity_(problem.load.size(), 0) {}

  std::size_t adapters() const { return problem_.load.size(); }
  int copies(std::size_t adapter) const { return copies_[adapter]; }

  bool holds(std::size_t replica, std::size_t adapter) const {
    const std::vector<AdapterId>& held = placement_[replica];
    return std::find(held.begin(), held.end(), id_of(adapter)) != held.end();
  }
  bool fits(std::size_t replica, std::size_t adapter) const {
    const std::int64_t taken =
        problem_.replica_blocks - free_[replica] + problem_.adapter_blocks[adapter];
    return taken <= problem_.preload_blocks &&
           static_cast<std::int64_t>(placement_[replica].size()) < problem_.preload_adapters;
  }

  // The replica for another copy: most memory left, then least load, then the first. -1: none.
  int roomiest(std::size_t adapter) const {
    int best = -1;
    for (std::size_t j = 0; j < problem_.replicas; ++j) {
      if (!fits(j, adapter) || holds(j, adapter)) continue;
      const auto b = static_cast<std::size_t>(best);
      if (best < 0 || free_[j] > free_[b] || (free_[j] == free_[b] && load_[j] < load_[b])) {
        best = static_cast<int>(j);
      }
    }
    return best;
  }

  void add(std::size_t adapter, std::size_t replica) {
    const std::int64_t blocks = problem_.adapter_blocks[adapter];
    for (const AdapterId held : placement_[replica]) capacity_[index(held)] -= blocks;
    free_[replica] -= blocks;
    capacity_[adapter] += free_[replica];
    load_[replica] += problem_.load[adapter];
    ++copies_[adapter];
    placement_[replica].push_back(id_of(adapter));
  }
  void take_back(std::size_t adapter, std::size_t replica) {
    placement_[replica].pop_back();
    --copies_[adapter];
    load_[replica] -= problem_.load[adapter];
    capacity_[adapter] -= free_[replica];
    const std::int64_t blocks = problem_.adapter_blocks[adapter];
    free_[replica] += blocks;
    for (const AdapterId held : placement_[replica]) capacity_[index(held)] += blocks;
  }

  double tolerance(std::size_t adapter) const {
    if (problem_.load[adapter] <= 0) return kInfinity;
    return static_cast<double>(capacity_[adapter]) / problem_.load[adapter];
  }
  double lowest() const {
    double lowest = kInfinity;
    for (std::size_t k = 0; k < adapters(); ++k) lowest = std::min(lowest, tolerance(k));
    return lowest;
  }
  std::size_t least_tolerant() const {
    std::size_t least = 0;
    for (std::size_t k = 1; k < adapters(); ++k) {
      if (tolerance(k) < tolerance(least)) least = k;
    }
    return least;
  }
  Placement take() { return std::move(placement_); }

 private:
  static AdapterId id_of(std::size_t adapter) {
    return static_cast<AdapterId>(static_cast<std::uint32_t>(adapter));
  }

  const PlacementProblem& problem_;
  Placement placement_;
  std::vector<std::int64_t> free_;      // [replicas] blocks
  std::vector<double> load_;            // [replicas] of the adapters that it holds
  std::vector<int> copies_;             // [adapters]
  std::vector<std::int64_t> capacity_;  // [adapters] free blocks where it is held
};

}  // namespace

PlacementProblem placement_problem(const DeploymentView& view, double preload_share) {
  const std::vector<Unit>& units = view.equal_replicas().units;
  const UnitMemory memory = view.memory(units.front());
  PlacementProblem problem;
  problem.load.assign(view.long_term_shares().begin(), view.long_term_shares().end());
  for (const Adapter& adapter : view.adapter_table()) {
    problem.adapter_blocks.push_back(memory.adapters.blocks_of(adapter.bytes));
  }
  problem.replicas = units.size();
  problem.replica_blocks = memory.kv_blocks;
  problem.preload_blocks =
      static_cast<std::int64_t>(preload_share * static_cast<double>(problem.replica_blocks));
  problem.preload_adapters = memory.adapters.memory == AdapterMemory::kSlots
                                 ? memory.adapters.slots
                                 : static_cast<std::int64_t>(problem.load.size());
  return problem;
}

Deployment deploy_placed(const DeploymentView& view, const Placement& placement) {
  Deployment deployment = view.equal_replicas();
  for (std::size_t j = 0; j < placement.size(); ++j) deployment.units[j].adapters = placement[j];
  return deployment;
}

Placement place_by_burst_tolerance(const PlacementProblem& problem) {
  Growing growing(problem);
  std::vector<std::size_t> by_load(problem.load.size());
  std::iota(by_load.begin(), by_load.end(), std::size_t{0});
  std::stable_sort(by_load.begin(), by_load.end(),
                   [&](std::size_t a, std::size_t b) { return problem.load[a] > problem.load[b]; });
  for (const std::size_t adapter : by_load) {
    if (problem.load[adapter] <= 0) break;
    const int replica = growing.roomiest(adapter);
    if (replica >= 0) growing.add(adapter, static_cast<std::size_t>(replica));
  }
  while (growing.adapters() > 0) {
    const double before = growing.lowest();
    const std::size_t adapter = growing.least_tolerant();
    if (before == 0 || before == kInfinity) break;  // one without room for a copy stays the lowest
    const int replica = growing.roomiest(adapter);
    if (replica < 0) break;
    growing.add(adapter, static_cast<std::size_t>(replica));
    if (growing.lowest() < before) {
      growing.take_back(adapter, static_cast<std::size_t>(replica));
      break;
    }
  }
  return growing.take();
}

Placement place_as_artifact(const PlacementProblem& problem, ArtifactCopies copies,
                            std::size_t first) {
  Growing growing(problem);
  const std::size_t n = growing.adapters();
  for (std::size_t k = 0; k < n; ++k) {
    const std::size_t replica = k % problem.replicas;
    if (growing.fits(replica, k)) growing.add(k, replica);
  }
  std::size_t adapter = n > 0 ? first % n : 0;
  for (std::size_t j = 0; n > 0 && j < problem.replicas; ++j) {
    for (std::size_t tried = 0; tried < n && growing.holds(j, adapter); ++tried) {
      if (copies == ArtifactCopies::kOneAdapterEverywhere) break;
      adapter = (adapter + 1) % n;
    }
    if (!growing.holds(j, adapter) && growing.fits(j, adapter)) growing.add(adapter, j);
    if (copies == ArtifactCopies::kInTurn) adapter = (adapter + 1) % n;
  }
  return growing.take();
}

double lowest_tolerance(const PlacementProblem& problem, const Placement& placement) {
  Growing growing(problem);
  for (std::size_t j = 0; j < placement.size(); ++j) {
    for (const AdapterId id : placement[j]) growing.add(index(id), j);
  }
  return growing.lowest();
}

}  // namespace servelab
