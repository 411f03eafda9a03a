// `servelab calibrate`: measures a real engine, fits the twin's cost models to it, and writes them
// as a hardware profile, with the raw rows beside it.
#ifndef SERVELAB_CALIBRATE_CALIBRATE_H_
#define SERVELAB_CALIBRATE_CALIBRATE_H_

#include <atomic>
#include <string>
#include <vector>

#include "engine/calibrate/calibration_fit.h"
#include "engine/calibrate/calibration_plan.h"

namespace servelab {

// What a calibration needs of an engine. Each call measures once; errors are SpecErrors.
class CalibrationTarget {
 public:
  virtual ~CalibrationTarget() = default;

  virtual StepSample step(const PlannedStep& step) = 0;
  virtual CopySample load(CopyKind kind, int rank) = 0;    // kHostLoad, kDiskLoad
  virtual CopySample swap(CopyKind kind, int tokens) = 0;  // kSwapIn, kSwapOut
  // Merges an adapter of `rank`, then unmerges it.
  virtual std::vector<MergeSample> merge(int rank) = 0;
  virtual CoreSample core(int rows) = 0;  // of an adapter of the largest rank
  virtual SchedulerSample schedule(const PlannedSchedule& schedule) = 0;
};

// Every planned measurement, several times over in rounds, so that a disturbance of the machine
// hits all of them alike; the median of each. Stops early, with SpecError, when `stop` is set.
CalibrationSamples measure(CalibrationTarget* target, bool quick, const std::atomic<int>* stop);

struct CalibrateOptions {
  std::string experiments = "experiments";
  std::string backend = "cpu";
  std::string model;
  std::string out;  // empty: results/calibration/<profile's name>.yaml
  int threads = 0;  // 0: all processors
  bool quick = false;
  std::vector<std::string> lora = {"q", "k", "v", "o"};
  const std::atomic<int>* stop = nullptr;
};

// Prints its table on stdout and writes the profile, a placement twin that extends it, and the rows
// (CSV). Throws SpecError.
void calibrate(const CalibrateOptions& options);

}  // namespace servelab

#endif  // SERVELAB_CALIBRATE_CALIBRATE_H_
