#include "tests/support/migration_cluster.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/core/rng.h"

namespace servelab::test {
namespace {

std::vector<double> power_weights(int n, double skew) {
  std::vector<double> weights(n);
  for (int i = 0; i < n; ++i) weights[i] = std::pow(i + 1, -skew);
  return weights;
}

}  // namespace

MigrationProblem make_migration_problem(const MigrationCluster& cluster, std::uint64_t seed) {
  constexpr double kAdapterBytes = 40e6;
  constexpr double kBytesPerToken = 524'288;
  RngStream rng(seed, "migration");
  MigrationProblem problem;
  problem.eta_s = cluster.eta_s;
  problem.adapters.assign(cluster.adapters, {kAdapterBytes});
  problem.replicas.assign(cluster.replicas, {cluster.device_bytes, 1e12, {}, false, false});

  const Categorical popular(power_weights(cluster.adapters, cluster.adapter_skew));
  const Categorical placed(power_weights(cluster.replicas, cluster.replica_skew));
  std::vector<double> exec_s(cluster.adapters);
  std::vector<std::vector<int>> copies(cluster.adapters);
  for (int k = 0; k < cluster.adapters; ++k) {
    exec_s[k] = rng.uniform(2, 8);
    const int count = 1 + static_cast<int>(rng.below(cluster.most_copies));
    for (int c = 0; c < count; ++c) {
      const int j = static_cast<int>(placed.draw(&rng));
      if (std::count(copies[k].begin(), copies[k].end(), j) > 0) continue;
      copies[k].push_back(j);
      problem.replicas[j].resident.push_back(k);
    }
  }

  std::vector<double> load(cluster.replicas);
  for (int i = 0; i < cluster.requests; ++i) {
    MigrationRequest request;
    request.adapter = static_cast<int>(popular.draw(&rng));
    const auto& homes = copies[request.adapter];
    request.home = homes[rng.below(homes.size())];
    request.exec_s = exec_s[request.adapter];
    const double u = rng.uniform();
    const double tokens = std::floor(20 + 1500 * u * rng.uniform());
    request.bytes = tokens * kBytesPerToken;
    request.move_s = cluster.move_scale * (0.01 + 1e-4 * tokens);
    load[request.home] += request.exec_s;
    problem.requests.push_back(request);
  }
  std::vector<int> order(cluster.replicas);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return load[a] > load[b]; });
  for (int n = 0; n < cluster.pairs; ++n) {
    MigrationReplica& overloaded = problem.replicas[order[n]];
    MigrationReplica& underloaded = problem.replicas[order[cluster.replicas - 1 - n]];
    overloaded.may_send = true;
    underloaded.may_receive = true;
    overloaded.may_receive = underloaded.may_send = cluster.both_ways;
  }
  return problem;
}

}  // namespace servelab::test
