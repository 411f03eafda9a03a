// What a calibration measures: the shapes of steps, and the runs that time the scheduler. Pure.
#ifndef SERVELAB_CALIBRATE_CALIBRATION_PLAN_H_
#define SERVELAB_CALIBRATE_CALIBRATION_PLAN_H_

#include <vector>

#include "engine/serve/cost.h"

namespace servelab {

// One sequence's share of a step to be measured.
struct PlannedSlice {
  int tokens = 1;
  int context = 0;
  int rank = 0;     // 0: the base model
  int adapter = 0;  // which one of that rank; equal numbers share it
  bool samples = true;
};

struct PlannedStep {
  std::vector<PlannedSlice> slices;
  LoraKernel kernel = LoraKernel::kSgmv;

  std::int64_t tokens() const;
  BatchShape shape() const;
};

// Base decodes over batch and context; decodes with adapters over kernel, batch and rank (distinct,
// shared, half of the rows, mixed ranks); prefills over length, context and rank; both at once.
std::vector<PlannedStep> planned_steps(bool quick);

inline constexpr int kMostSequences = 64;
inline constexpr int kMostContext = 1024;  // of a decode; a prefill has at most kMostPrefill
inline constexpr int kMostPrefill = 2048;
const std::vector<int>& calibrated_ranks();  // ascending
const std::vector<int>& core_rows();         // of one core's LoRA, ascending

// One run of the real scheduler: everyone arrives at once and is served from `slots` slots.
struct PlannedSchedule {
  int adapters = 8;
  int slots = 8;
  int max_batch = 16;
  int requests = 200;
  int output_tokens = 16;
};
std::vector<PlannedSchedule> planned_schedules(bool quick);

}  // namespace servelab

#endif  // SERVELAB_CALIBRATE_CALIBRATION_PLAN_H_
