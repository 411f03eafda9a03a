// The naive side of dLoRA's co-migration program, without a solver: what its answers are compared
// with.
#ifndef SERVELAB_TESTS_SUPPORT_MIGRATION_ORACLES_H_
#define SERVELAB_TESTS_SUPPORT_MIGRATION_ORACLES_H_

#include <vector>

#include "baselines/shared/migration_ilp.h"

namespace servelab::test {

// The least objective over every placement of every request in device or host memory; infinite
// where none fits. Exponential: (2 replicas)^requests.
double best_full_seconds(const MigrationProblem& problem);

// The least objective of kRelaxed over every whole placement. replicas^requests.
double best_whole_seconds(const MigrationProblem& problem, const MigrationOptions& options);

// The optimum of kRelaxed and kArtifact, x continuous, on two replicas with memory to spare: for
// each choice of where adapters are, requests that may be split go to the replica where they are
// relatively cheaper until both take as long. Infinite where no choice is allowed.
double best_split_seconds(const MigrationProblem& problem, const MigrationOptions& options);

}  // namespace servelab::test

#endif  // SERVELAB_TESTS_SUPPORT_MIGRATION_ORACLES_H_
