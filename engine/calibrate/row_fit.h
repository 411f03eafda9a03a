// `servelab calibrate --from`: the constants of the fitted cost model from measurements of somebody
// else's server, single steps or whole runs.
//
// A whole run gives one equation: its inter-token latency is the mean step of its mean batch. By
// Little's law output tokens/s x latency requests decode; prompt tokens come in as requests do;
// with Poisson arrivals sum over adapters of (1 - exp(-share x batch)) of them are in the step, at
// most the slots.
#ifndef SERVELAB_CALIBRATE_ROW_FIT_H_
#define SERVELAB_CALIBRATE_ROW_FIT_H_

#include <array>
#include <string>
#include <vector>

#include "engine/backend/cost/fitted_constants.h"
#include "engine/calibrate/measured_rows.h"
#include "engine/spec/spec.h"

namespace servelab {

// What a step's time is a sum of, in the order in which one is kept where data cannot tell two
// apart.
enum class RowTerm : std::uint8_t {
  kStep,         // once
  kToken,        // per row: decoding requests and prompt tokens
  kAdapter,      // per distinct adapter in the step
  kAdapterRank,  // per rank of each
  kPair,         // per row with an adapter and distinct adapter
  kSlot,         // per reserved slot
  kWaiting,      // per waiting request
  kContext,      // per key that decodes read
  kLoraToken,    // per row with an adapter, beside kToken
  kPromptToken,  // per prompt token, beside kToken
};
inline constexpr std::array kRowTerms = {
    "step", "token",           "adapter",  "rank of an adapter",    "token and adapter",
    "slot", "waiting request", "key read", "token with an adapter", "prompt token"};
using TermValues = std::array<double, kRowTerms.size()>;
inline double& at(TermValues& values, RowTerm term) {
  return values[static_cast<std::size_t>(term)];
}
inline double at(const TermValues& values, RowTerm term) {
  return values[static_cast<std::size_t>(term)];
}

// One step's scheduling, where it was measured by itself.
struct SchedulingRow {
  double requests = 0, waiting = 0, seconds = 0;
};

struct RowEquation {
  int line = 0;
  TermValues terms{};
  double itl_s = 0;
  // How much more a change of cost shows in the run's latency, where a slower server has larger
  // batches: 1 in single steps and where no more requests can come in.
  bool feeds_back = false;
  bool is_step = false;
  TermValues growth{};                // of terms, where batch and latency are 1 % more
  std::vector<std::string> settings;  // values by key, in the order of the keys
};

struct LeftOut {
  std::string key;   // whose values were left out, one after another
  double error = 0;  // SMAPE of the latencies of rows that were not fitted to, percent
};

struct RowFit {
  TermValues us{};      // >= 0
  TermValues shares{};  // of a row's fitted latency, mean
  std::vector<RowTerm> kept;
  std::vector<std::pair<RowTerm, RowTerm>> not_told_apart;  // one that is 0, and one beside it
  std::vector<RowTerm> taken_over;  // that rows cannot tell, and another profile does
  std::size_t rows = 0;
  std::size_t steps = 0;              // of them
  double error = 0;                   // SMAPE of the latencies that it was fitted to, percent
  double step_error = 0;              // the same of single steps, and
  double run_error = 0;               // of whole runs; NaN: none
  std::array<TermValues, 5> folds{};  // fits to all rows but every fifth, from the n-th on
  double fold_error = 0;              // SMAPE, percent, of the rows that each has not seen
  std::vector<LeftOut> left_out;
  std::size_t scheduling_rows = 0;
  double scheduling_error = 0;                               // SMAPE, percent
  double load_s = std::numeric_limits<double>::quiet_NaN();  // mean of one load
};

// Of all rows, in order of appearance.
std::vector<std::string> keys_of(const MeasuredRows& rows);

// Throws SpecError, naming what to measure, where there are fewer rows than terms can be told from.
std::vector<RowEquation> equations(const Spec& spec, const MeasuredRows& rows,
                                   const std::string& data_dir);
// The cost of a waiting request is the scheduler's own where `scheduling` has rows that tell it:
// in whole runs it goes with all that a queue does to a server. `elsewhere`, or null: what terms
// cost that these rows cannot tell apart.
RowFit fit_rows(std::vector<RowEquation> equations, const std::vector<SchedulingRow>& scheduling,
                const std::vector<std::string>& keys, const TermValues* elsewhere = nullptr);

// What the cost model reads; `load_bytes_per_s`: of adapters, beside load_s for each.
void put_constants(const RowFit& fit, FittedConstants* constants);
// The inverse, of a profile that was fitted to rows.
TermValues terms_in(const FittedConstants& constants);

}  // namespace servelab

#endif  // SERVELAB_CALIBRATE_ROW_FIT_H_
