// Cluster-sized instances of dLoRA's co-migration program, as a policy would pose them.
#ifndef SERVELAB_TESTS_SUPPORT_MIGRATION_CLUSTER_H_
#define SERVELAB_TESTS_SUPPORT_MIGRATION_CLUSTER_H_

#include <cstdint>

#include "baselines/shared/migration_ilp.h"

namespace servelab::test {

struct MigrationCluster {
  int replicas = 32;
  int adapters = 128;
  int requests = 2000;
  int pairs = 4;               // K: so many of the most loaded send, so many of the least receive
  bool both_ways = false;      // senders receive too, and receivers send
  double adapter_skew = 0.8;   // popularity of the n-th adapter ~ n^-skew
  double replica_skew = 0.7;   // how unevenly adapters, and so requests, lie on replicas
  int most_copies = 6;         // an adapter is on 1 to so many replicas
  double eta_s = 0.1;          // what the public artifact passes
  double device_bytes = 58e9;  // a Llama-2-7B on 80 GB: what weights and activations leave
  // Times move_s of recomputing a prompt: about 0.1 ms per token.
  double move_scale = 1;
};

// Requests of 20 to 1,520 tokens (half a MiB of keys and values each), adapters whose requests take
// 2 to 8 s. Deterministic.
MigrationProblem make_migration_problem(const MigrationCluster& cluster, std::uint64_t seed);

}  // namespace servelab::test

#endif  // SERVELAB_TESTS_SUPPORT_MIGRATION_CLUSTER_H_
