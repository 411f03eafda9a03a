// Files that a calibration leaves: a hardware profile, its placement twin, and the measured rows.
#ifndef SERVELAB_CALIBRATE_PROFILE_FILE_H_
#define SERVELAB_CALIBRATE_PROFILE_FILE_H_

#include <optional>
#include <string>

#include "engine/backend/cost/hardware.h"
#include "engine/calibrate/calibration_fit.h"

namespace servelab {

// YAML that load_hardware_profile() reads back as `profile`, with the sections of both fitted
// models, or without the paper's where there is none. `heading`: comment lines without the #.
std::string profile_yaml(HardwareProfile profile, std::optional<PlacementConstants> paper,
                         const std::string& heading);

// A profile that extends `name` (a file beside it) and uses the placement paper's model.
std::string placement_yaml(const std::string& name, const std::string& heading);

// A line per measurement, with what both fitted models say of it.
std::string samples_csv(const CalibrationSamples& samples, const CalibrationFit& fit);

// The table that calibrate prints.
std::string fit_table(const CalibrationSamples& samples, const CalibrationFit& fit);

}  // namespace servelab

#endif  // SERVELAB_CALIBRATE_PROFILE_FILE_H_
