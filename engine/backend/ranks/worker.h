// A rank other than 0 as a process: it serves rank 0's commands until rank 0 says goodbye. It knows
// nothing of requests, policies or results; it holds its part of the model, and adapters.
#ifndef SERVELAB_BACKEND_RANKS_WORKER_H_
#define SERVELAB_BACKEND_RANKS_WORKER_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "engine/backend/ranks/messages.h"
#include "engine/backend/ranks/rank_group.h"

namespace servelab::ranks {

// How a worker comes to its device. All called on one thread.
struct WorkerDevice {
  // Finds the model and reads its weights' head. SpecError where this rank has not got them.
  std::function<void(const OpenRank& open)> prepare;
  // A new name under which ranks can meet for their sums.
  std::function<std::string()> name_group;
  // Joins the group and sets the device up.
  std::function<std::unique_ptr<Device>(const OpenRank& open)> open;
  // The shapes of this rank's part of the model that `open` names.
  std::function<ModelConfig(const OpenRank& open)> part;
};

struct WorkerSettings {
  RankAddress at;
  int rank = 1;
  int ranks = 2;
  Identity identity;
  GroupSecret secret;
  std::chrono::milliseconds patience{300'000};
  WorkerDevice device;
  const std::atomic<int>* stop = nullptr;  // a signal's number: rank 0 is told
  Failed on_failure;                       // as RankGroup's: rank 0 has ended, or no longer agrees
};

// Returns the exit code that rank 0 said. Throws SpecError where rank 0 cannot be reached, or
// refuses.
int serve_rank(const WorkerSettings& settings);

}  // namespace servelab::ranks

#endif  // SERVELAB_BACKEND_RANKS_WORKER_H_
