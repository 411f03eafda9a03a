// A real engine as a target of calibration.
#ifndef SERVELAB_CALIBRATE_ENGINE_CALIBRATION_H_
#define SERVELAB_CALIBRATE_ENGINE_CALIBRATION_H_

#include <memory>
#include <string>
#include <vector>

#include "engine/calibrate/calibrate.h"
#include "engine/model/model_config.h"

namespace servelab {

// Random weights and adapters of calibrated_ranks() on `targets`, for the steps of
// planned_steps(quick). `threads` > 0 of the CPU engine.
std::unique_ptr<CalibrationTarget> make_calibration(const std::string& backend,
                                                    const ModelConfig& model,
                                                    const std::vector<std::string>& targets,
                                                    int threads, bool quick);

}  // namespace servelab

#endif  // SERVELAB_CALIBRATE_ENGINE_CALIBRATION_H_
