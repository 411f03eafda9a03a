// dLoRA's adapter-request co-migration as an integer program (OSDI '24, 5.2): which requests, with
// which adapters, move between replicas so that the slowest replica finishes first. Plain data in
// and out; a cluster policy fills in the problem from its views and carries the answer out.
#ifndef SERVELAB_BASELINES_SHARED_MIGRATION_ILP_H_
#define SERVELAB_BASELINES_SHARED_MIGRATION_ILP_H_

#include <cstdint>
#include <vector>

#include "baselines/shared/mip.h"

namespace servelab {

struct MigrationRequest {
  static constexpr int kBase = -1;
  int adapter = kBase;  // into MigrationProblem::adapters; kBase: served by the base model
  int home = 0;         // the replica that holds it now
  double exec_s = 0;    // L_i: average execution time of requests with its adapter
  // What moving it adds to its execution time (token transfer, recomputation). The paper's factor
  // is gamma = (L_i + move_s) / L_i, and applies where the request is not at home.
  double move_s = 0;
  double bytes = 0;  // M_i^R: of its intermediate states
};

struct MigrationAdapter {
  double bytes = 0;  // M_k^A
};

struct MigrationReplica {
  double device_bytes = 0;    // M_j^G: device memory for requests and adapters
  double host_bytes = 0;      // M_j^H: host memory for requests; the full form alone reads it
  std::vector<int> resident;  // adapters on the device now; the artifact's form alone counts them
  // A request may leave its home where may_send, and go where may_receive: selective migration
  // lets the top K overloaded replicas send and the top K underloaded ones receive. A replica that
  // does neither is left out of the problem.
  bool may_send = true;
  bool may_receive = true;
};

struct MigrationProblem {
  std::vector<MigrationRequest> requests;
  std::vector<MigrationAdapter> adapters;
  std::vector<MigrationReplica> replicas;
  double link_bytes_per_s = 32e9;  // B, host to device
  double eta_s = 0;                // affinity: what each adapter on a replica adds to its time
};

enum class MigrationForm {
  // Binary x^G, x^H and y; device and host memory are constraints. Exact, exponential.
  kFull,
  // x continuous, y binary; memory beyond a replica's capacity adds the time to swap it.
  kRelaxed,
  // As the public artifact codes it: kRelaxed without eta and with adapters left out of memory; a
  // request that moves adds artifact_move_s whatever its move_s; no more adapters per replica than
  // are resident there now.
  kArtifact,
};

struct MigrationOptions {
  MigrationForm form = MigrationForm::kRelaxed;
  double artifact_move_s = 0.05;
  MipOptions mip;
};

struct MigrationSolution {
  // kOptimal and kFeasible describe the program's solution, also where staying put was as good.
  MipStatus status = MipStatus::kError;
  std::vector<int> replica_of;  // [requests]; home for all where nothing better was found
  bool moves = false;           // some request leaves its home
  // The times below are of the slowest replica that takes part, by the form's own objective.
  double objective_s = 0;   // of the program's solution, x fractional where relaxed
  double bound_s = 0;       // no placement is better
  double stay_s = 0;        // all at home
  double bottleneck_s = 0;  // of replica_of
  int columns = 0, rows = 0, nodes = 0;
  std::int64_t nonzeros = 0, iterations = 0;
};

// Where each request should be. Throws InvariantError for indices outside the problem, and for
// numbers that are negative or not finite.
MigrationSolution solve_migration(const MigrationProblem& problem, const MigrationOptions& options);

// Time of the slowest replica that takes part when request i is at replica_of[i] (dLoRA's
// objective): execution, migration, swapping of what exceeds the device's memory, and eta for each
// adapter in use there.
double bottleneck_seconds(const MigrationProblem& problem, const MigrationOptions& options,
                          const std::vector<int>& replica_of);

// What solving costs, for virtual time: deterministic, unlike a stopwatch.
double solving_seconds(const MigrationSolution& solution);

}  // namespace servelab

#endif  // SERVELAB_BASELINES_SHARED_MIGRATION_ILP_H_
