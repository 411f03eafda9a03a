// `servelab run` as one of several processes that a launcher started (launch.h): rank 0 runs the
// specs, the others serve it as ranks of its replicas (engine/backend/ranks).
#ifndef SERVELAB_CLI_RANK_PROCESSES_H_
#define SERVELAB_CLI_RANK_PROCESSES_H_

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "engine/backend/ranks/rank_group.h"
#include "engine/model/model_config.h"
#include "engine/spec/spec.h"

namespace CLI {
class App;
}

namespace servelab {

struct RankOptions {
  std::string mode = "auto";  // or threads, processes
  std::string at;             // "HOST:PORT" of rank 0; empty: as the launcher says
  double timeout_s = 300;
  std::string secret;  // a file; empty: SERVELAB_RANKS_SECRET
  bool open = false;
};

void declare_ranks(CLI::App* run, RankOptions* options);

// Calls run(group) with the other processes as `group`, or with null where this one is by itself;
// in those other processes serves rank 0 until it says goodbye, and `run` is not called. Returns
// the exit code, rank 0's in all. `is_here`: points are computed by this command itself.
//
// With auto the processes form a group where a launcher started several and some point, on an
// accelerator, takes several devices; otherwise each runs by itself (where they start together on
// the same results, the first computes and the others say that it does). Throws SpecError where
// they are to be a group and cannot; where one of them ends without a goodbye, the others end with
// one line on stderr and exit code 1, from whatever they do.
int with_ranks(const RankOptions& options, const std::vector<Spec>& specs, bool is_here,
               std::atomic<int>* stop, const std::function<int(ranks::RankGroup* group)>& run);

}  // namespace servelab

#endif  // SERVELAB_CLI_RANK_PROCESSES_H_
