#include "baselines/shared/migration_ilp.h"

#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "baselines/shared/migration_scope.h"
#include "engine/core/check.h"

namespace servelab {
namespace {

bool amount(double value) { return std::isfinite(value) && value >= 0; }

void check(const MigrationProblem& problem, const MigrationOptions& options) {
  SL_CHECK(std::isfinite(problem.link_bytes_per_s) && problem.link_bytes_per_s > 0,
           "migration: the link's bandwidth");
  SL_CHECK(amount(problem.eta_s) && amount(options.artifact_move_s) && amount(options.class_width),
           "migration: a penalty or the width of classes");
  const int replicas = static_cast<int>(problem.replicas.size());
  const int adapters = static_cast<int>(problem.adapters.size());
  for (const MigrationAdapter& adapter : problem.adapters) {
    SL_CHECK(amount(adapter.bytes), "migration: an adapter's bytes");
  }
  for (const MigrationReplica& replica : problem.replicas) {
    SL_CHECK(amount(replica.device_bytes) && amount(replica.host_bytes),
             "migration: a replica's memory");
    for (const int k : replica.resident) {
      SL_CHECK(k >= 0 && k < adapters, "migration: a resident adapter");
    }
  }
  for (const MigrationRequest& request : problem.requests) {
    SL_CHECK(request.home >= 0 && request.home < replicas, "migration: a request's home");
    SL_CHECK(request.adapter >= MigrationRequest::kBase && request.adapter < adapters,
             "migration: a request's adapter");
    SL_CHECK(amount(request.exec_s) && amount(request.move_s) && amount(request.bytes),
             "migration: a request's numbers");
  }
}

double relaxed_bottleneck_seconds(const MigrationScope& scope, const std::vector<int>& replica_of) {
  std::vector<double> seconds(scope.replicas(), 0.0);
  std::vector<double> bytes(scope.replicas(), 0.0);
  std::set<std::pair<int, int>> in_use;
  for (std::size_t i = 0; i < replica_of.size(); ++i) {
    const MigrationRequest& request = scope.problem.requests[i];
    const int j = replica_of[i];
    seconds[j] += scope.seconds_at(request, j);
    bytes[j] += request.bytes;
    if (request.adapter == MigrationRequest::kBase) continue;
    if (!in_use.insert({request.adapter, j}).second) continue;
    seconds[j] += scope.eta_s();
    bytes[j] += scope.adapter_bytes(request.adapter);
  }
  double slowest = 0;
  for (int j = 0; j < scope.replicas(); ++j) {
    if (!scope.takes_part(j)) continue;
    const double swapped = std::max(0.0, bytes[j] - scope.problem.replicas[j].device_bytes);
    slowest = std::max(slowest, seconds[j] + swapped / scope.problem.link_bytes_per_s);
  }
  return slowest;
}

double bottleneck(const MigrationScope& scope, const std::vector<int>& replica_of) {
  return scope.options.form == MigrationForm::kFull ? full_bottleneck_seconds(scope, replica_of)
                                                    : relaxed_bottleneck_seconds(scope, replica_of);
}

}  // namespace

double bottleneck_seconds(const MigrationProblem& problem, const MigrationOptions& options,
                          const std::vector<int>& replica_of) {
  check(problem, options);
  SL_CHECK(replica_of.size() == problem.requests.size(), "migration: a placement's size");
  for (const int j : replica_of) {
    SL_CHECK(j >= 0 && j < static_cast<int>(problem.replicas.size()), "migration: a placement");
  }
  return bottleneck(MigrationScope(problem, options), replica_of);
}

MigrationSolution solve_migration(const MigrationProblem& problem,
                                  const MigrationOptions& options) {
  check(problem, options);
  const MigrationScope scope(problem, options);
  std::vector<int> home;
  for (const MigrationRequest& request : problem.requests) home.push_back(request.home);

  MigrationSolution out = options.form == MigrationForm::kFull ? solve_full_migration(scope)
                                                               : solve_relaxed_migration(scope);
  out.stay_s = bottleneck(scope, home);
  out.rounded_s = out.objective_s;
  if (options.form != MigrationForm::kFull && std::isfinite(out.objective_s)) {
    out.rounded_s = bottleneck(scope, out.replica_of);
  }
  // Not by a rounding error of the sums.
  const double margin = std::isfinite(out.stay_s) ? 1e-9 * out.stay_s : 0;
  out.moves = out.rounded_s < out.stay_s - margin && out.replica_of != home;
  if (!out.moves) out.replica_of = std::move(home);
  out.bottleneck_s = out.moves ? out.rounded_s : out.stay_s;
  return out;
}

std::vector<double> migration_cost_terms(const MigrationSolution& solution) {
  const double rows = solution.rows;
  return {1, static_cast<double>(solution.replica_of.size()),
          static_cast<double>(solution.nonzeros), rows * static_cast<double>(solution.iterations),
          solution.nodes > 0 ? (1.0 + solution.nodes) * (solution.columns + rows) : 0};
}

double solving_seconds(const MigrationSolution& solution) {
  const std::vector<double> terms = migration_cost_terms(solution);
  return 1e-9 * std::inner_product(terms.begin(), terms.end(), kMigrationCostNs, 0.0);
}

}  // namespace servelab
