// `servelab replay`: shows that the decisions of real runs follow from their stamps.
#ifndef SERVELAB_CALIBRATE_REPLAY_H_
#define SERVELAB_CALIBRATE_REPLAY_H_

#include <string>

#include "engine/spec/spec.h"

namespace servelab {

struct ReplayReport {
  int replayed = 0;
  int diverged = 0;
  int missing = 0;  // real points that have not been run
};

// Replays every point of `spec` that ran on a real backend, from its file under `out`, in virtual
// time, and compares the decision logs by their hashes. Prints one line per point.
ReplayReport replay_spec(const Spec& spec, const std::string& out, const std::string& data_dir);

}  // namespace servelab

#endif  // SERVELAB_CALIBRATE_REPLAY_H_
