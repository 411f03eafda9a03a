// How far off a fitted profile's twin will be, before any whole run has been measured: what a run
// would be with each doubt about the fit taken at its size.
#ifndef SERVELAB_CALIBRATE_EXPECTED_ERROR_H_
#define SERVELAB_CALIBRATE_EXPECTED_ERROR_H_

#include <string>

#include "engine/calibrate/measured_rows.h"
#include "engine/calibrate/row_fit.h"
#include "engine/spec/spec.h"

namespace servelab {

// Of two kinds, relative:
//   rows: twice the SMAPE of rows that a fit had not seen (a SMAPE is half a ratio), of all terms
//     that rows told;
//   elsewhere: of each term taken over from another server's profile, how much the two servers
//     differ in the terms that both could tell (root mean square of logarithms, by the terms'
//     shares of a row).
// Terms that are 0 because nobody could tell them are no part of it.
struct Doubt {
  double rows = 0;
  double elsewhere = 0;
};
Doubt doubt_of(const RowFit& fit, const TermValues* elsewhere);

struct ExpectedErrors {
  std::size_t runs = 0;  // settings that were tried, evenly spaced
  Doubt doubt;
  double throughput = 0, itl = 0, ttft = 0;  // SMAPE, percent: means over the runs
};

// `runs`: whose settings are tried, not what was measured; empty: the spec's own. `profile`: as the
// fit gives it, a file.
ExpectedErrors expected_errors(const Spec& spec, const MeasuredRows& runs,
                               const std::string& profile, const RowFit& fit, const Doubt& doubt,
                               const std::string& data_dir);
std::string text(const ExpectedErrors& errors);

}  // namespace servelab

#endif  // SERVELAB_CALIBRATE_EXPECTED_ERROR_H_
