// What the forms of dLoRA's co-migration program have in common (see migration_ilp.h, which is what
// others include).
#ifndef SERVELAB_BASELINES_SHARED_MIGRATION_SCOPE_H_
#define SERVELAB_BASELINES_SHARED_MIGRATION_SCOPE_H_

#include <algorithm>
#include <vector>

#include "baselines/shared/migration_ilp.h"

namespace servelab {

// A problem under one form: who takes part, and what things cost there.
class MigrationScope {
 public:
  MigrationScope(const MigrationProblem& problem, const MigrationOptions& options)
      : problem(problem), options(options) {
    for (int j = 0; j < replicas(); ++j) {
      if (problem.replicas[j].may_receive) receivers.push_back(j);
    }
  }

  int replicas() const { return static_cast<int>(problem.replicas.size()); }
  int adapters() const { return static_cast<int>(problem.adapters.size()); }
  bool takes_part(int replica) const {
    return problem.replicas[replica].may_send || problem.replicas[replica].may_receive;
  }
  bool may_leave(const MigrationRequest& request) const {
    return problem.replicas[request.home].may_send &&
           std::any_of(receivers.begin(), receivers.end(),
                       [&](int j) { return j != request.home; });
  }

  bool artifact() const { return options.form == MigrationForm::kArtifact; }
  double eta_s() const { return artifact() ? 0 : problem.eta_s; }
  double adapter_bytes(int adapter) const {
    return artifact() ? 0 : problem.adapters[adapter].bytes;
  }
  double move_s(const MigrationRequest& request) const {
    return artifact() ? options.artifact_move_s : request.move_s;
  }
  double seconds_at(const MigrationRequest& request, int replica) const {
    return request.exec_s + (replica == request.home ? 0 : move_s(request));
  }

  const MigrationProblem& problem;
  const MigrationOptions& options;
  std::vector<int> receivers;  // ascending
};

// What the solver reports; objective_s is infinite where there is no solution.
inline MigrationSolution reported(const MipModel& model, const MipResult& result) {
  MigrationSolution out;
  out.status = result.status;
  out.objective_s = result.objective;
  out.bound_s = result.bound;
  out.columns = model.columns();
  out.rows = model.rows();
  out.nonzeros = model.nonzeros();
  out.nodes = result.nodes;
  out.iterations = result.iterations;
  return out;
}

// The program's solution as a placement, before it is compared with staying put: reported(), and
// replica_of, which is empty without a solution.
MigrationSolution solve_full_migration(const MigrationScope& scope);
MigrationSolution solve_relaxed_migration(const MigrationScope& scope);

// bottleneck_seconds of kFull: which requests wait in host memory is still to be decided.
double full_bottleneck_seconds(const MigrationScope& scope, const std::vector<int>& replica_of);

}  // namespace servelab

#endif  // SERVELAB_BASELINES_SHARED_MIGRATION_SCOPE_H_
