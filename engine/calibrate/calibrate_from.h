// `servelab calibrate --from`: a hardware profile from measurements of somebody else's server.
#ifndef SERVELAB_CALIBRATE_CALIBRATE_FROM_H_
#define SERVELAB_CALIBRATE_CALIBRATE_FROM_H_

#include <string>
#include <vector>

#include "engine/calibrate/row_fit.h"

namespace servelab {

// A line per equation, microseconds: measured, fitted, fitted to rows without it, and the terms.
std::string rows_csv(const std::vector<RowEquation>& equations, const RowFit& fit);

struct CalibrateFromOptions {
  std::string rows;  // CSV
  std::string spec;
  std::string terms_from;  // a hardware profile; empty: none
  std::string expect;      // CSV: runs whose error to expect; empty: the spec's own
  std::string experiments = "experiments";
  std::string data_dir;
  std::string out;  // the profile
};
// Prints what was fitted, writes a profile that extends the spec's hardware, and <profile>_fit.csv
// beside it. SpecError where one of them would replace what is read.
void calibrate_from(const CalibrateFromOptions& options);

}  // namespace servelab

#endif  // SERVELAB_CALIBRATE_CALIBRATE_FROM_H_
