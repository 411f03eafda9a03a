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
  // Binary x^G, x^H and y; device and host memory are constraints. Exact where MipOptions let it
  // be (relative_gap 0, many nodes); exponential.
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
  // The relaxed forms see requests of one adapter and home as one class with the mean of their
  // numbers, as long as their move_s, and the times to swap their bytes, lie within this share of
  // exec_s of each other; 0: only where they are the same. Without classes a request is a column
  // per receiver, and the program of 800 requests that may move (K = 4) takes ten times as long.
  double class_width = 0.05;
  MipOptions mip = {.max_nodes = 15, .max_iterations = 100'000, .relative_gap = 0.01};
};

struct MigrationSolution {
  // kOptimal (within MipOptions::relative_gap) and kFeasible describe the program's solution, also
  // where staying put was as good.
  MipStatus status = MipStatus::kError;
  std::vector<int> replica_of;  // [requests]; home for all where nothing better was found
  bool moves = false;           // some request leaves its home
  // The times below are of the slowest replica that takes part, by the form's own objective.
  double objective_s = 0;  // of the program's solution, x fractional where relaxed; infinite: none
  // No placement takes less; with classes, less than bound_s / (1 + 2 class_width).
  double bound_s = 0;
  double stay_s = 0;        // all at home; infinite where that does not fit (kFull)
  double rounded_s = 0;     // each request where the largest part of it is; infinite: no solution
  double bottleneck_s = 0;  // of replica_of: the better of the two above
  int columns = 0, rows = 0, nodes = 0;
  std::int64_t nonzeros = 0, iterations = 0;
};

// Where each request should be. kRelaxed and kArtifact need no limits beyond the default ones: a
// rounding finds a solution at the root. Throws InvariantError for indices outside the problem and
// for numbers that are negative or not finite.
MigrationSolution solve_migration(const MigrationProblem& problem, const MigrationOptions& options);

// Time of the slowest replica that takes part when request i is at replica_of[i] (dLoRA's
// objective): execution, migration, swapping, and eta for each adapter in use there. Infinite where
// memory does not suffice (kFull; NaN where `options.mip` is too small to tell).
double bottleneck_seconds(const MigrationProblem& problem, const MigrationOptions& options,
                          const std::vector<int>& replica_of);

// What building and solving the program costs, for virtual time: deterministic, unlike a stopwatch.
double solving_seconds(const MigrationSolution& solution);

// It is a sum of terms: one; requests; nonzeros (building, loading and factoring); iterations x
// rows (each works on vectors of that length); and, where the search left the root, nodes + 1 x
// (columns + rows). `servelab_bench --benchmark_filter=Migration` fits the coefficients to the
// machine that it runs on and prints the model beside measured times. These are from 2.3 GHz Xeon
// cores with CBC 2.10.8, 288 random instances: median error 12 %, 90th percentile 32 %.
inline constexpr int kMigrationCostTerms = 5;
inline constexpr double kMigrationCostNs[kMigrationCostTerms] = {79e3, 150, 250, 15, 700};
std::vector<double> migration_cost_terms(const MigrationSolution& solution);

}  // namespace servelab

#endif  // SERVELAB_BASELINES_SHARED_MIGRATION_ILP_H_
