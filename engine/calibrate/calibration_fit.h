// From measurements of an engine to the constants of the fitted cost models. Pure: no clock, no
// engine; calibrate.h measures.
#ifndef SERVELAB_CALIBRATE_CALIBRATION_FIT_H_
#define SERVELAB_CALIBRATE_CALIBRATION_FIT_H_

#include <string>
#include <vector>

#include "engine/backend/cost/fitted_constants.h"
#include "engine/calibrate/part_fit.h"
#include "engine/core/units.h"
#include "engine/serve/cost.h"

namespace servelab {

// One shape of step, and the median of its measured times. `dense` has whatever is not attention
// and not LoRA, so that the parts add up to the step.
struct StepSample {
  BatchShape shape;
  LoraKernel kernel = LoraKernel::kSgmv;
  Exec exec = Exec::kUnmerged;
  double dense_us = 0;
  double attention_us = 0;
  double lora_us = 0;
  double total_us() const { return dense_us + attention_us + lora_us; }
};

enum class CopyKind : std::uint8_t { kHostLoad, kDiskLoad, kSwapIn, kSwapOut };
struct CopySample {
  CopyKind kind = CopyKind::kHostLoad;
  int rank = 0;  // of loads
  Bytes bytes = 0;
  double us = 0;
};

struct MergeSample {
  int rank = 0;  // 0: an unmerge
  double us = 0;
};

// One core's x A B of some rows, summed over all layers and the matrices that adapters change.
struct CoreSample {
  int rows = 0;
  int rank = 0;
  double share = 0;  // of the dense layers' weights, those of these matrices
  double us = 0;
};

// One whole run: means over its steps.
struct SchedulerSample {
  double requests = 0;          // B
  double pending = 0;           // R_P
  double pending_by_share = 0;  // R_P A_B / A
  double us = 0;                // planning and bookkeeping per step
  double host_us = 0;           // all that a step takes beside its parts, handing over included
};

struct CalibrationSamples {
  std::vector<StepSample> steps;
  std::vector<CopySample> copies;
  std::vector<MergeSample> merges;
  std::vector<CoreSample> cores;  // ascending rows
  std::vector<SchedulerSample> scheduler;
};

// CaraServe's model of a decode step: alpha * work + beta, with work = rows x largest rank (bgmv)
// or the sum of ranks (mbgmv), at one context length. And the same for the LoRA part alone: on a
// CPU the dense layers grow with the batch as well, which the paper's GPU hides in beta.
struct KernelLine {
  double alpha_us = 0, beta_us = 0, r2 = 0;
  double lora_alpha_us = 0, lora_beta_us = 0, lora_r2 = 0;
  std::size_t rows = 0;
};

struct CalibrationFit {
  FittedConstants fitted;  // without model, dtype, targets, threads, machine
  PlacementConstants placement;
  std::vector<FitQuality> quality;
  KernelLine bgmv, mbgmv;
  // CaraServe's c: the rows of one adapter and matrix that one core is given at most. The paper
  // says how it is found, by a profile of one core, and not what bounds it; here up to c rows of a
  // prompt one core has x A B no later than the device has x W of as many, both summed over the
  // matrices that adapters change, so that nobody waits for a core that has its rows in time. At
  // least 1, at most what was measured; 0: no core was measured.
  int chunk_rows = 0;
};

// Throws SpecError when a part has too few rows to be fitted.
CalibrationFit fit_calibration(const CalibrationSamples& samples);

}  // namespace servelab

#endif  // SERVELAB_CALIBRATE_CALIBRATION_FIT_H_
