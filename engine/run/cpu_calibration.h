// The CPU engine as a target of calibration.
#ifndef SERVELAB_RUN_CPU_CALIBRATION_H_
#define SERVELAB_RUN_CPU_CALIBRATION_H_

#include <memory>
#include <string>
#include <vector>

#include "engine/model/model_config.h"
#include "engine/run/calibrate.h"

namespace servelab {

// Random weights and adapters of calibrated_ranks() on `targets`. `threads` > 0.
std::unique_ptr<CalibrationTarget> make_cpu_calibration(const ModelConfig& model,
                                                        const std::vector<std::string>& targets,
                                                        int threads);

}  // namespace servelab

#endif  // SERVELAB_RUN_CPU_CALIBRATION_H_
