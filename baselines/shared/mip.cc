#include "baselines/shared/mip.h"

#include <CbcHeuristic.hpp>
#include <CbcModel.hpp>
#include <CoinError.hpp>
#include <CoinPackedMatrix.hpp>
#include <CoinWarmStartBasis.hpp>
#include <OsiClpSolverInterface.hpp>
#include <algorithm>
#include <climits>
#include <cmath>
#include <memory>

#include "engine/core/check.h"

namespace servelab {
namespace {

constexpr double kIntegerTolerance = 1e-6;

// The model with the solver's own infinity (a large finite number).
void load(const MipModel& model, OsiClpSolverInterface* solver) {
  const double infinity = solver->getInfinity();
  const auto bounds = [infinity](std::span<const double> values) {
    std::vector<double> out(values.begin(), values.end());
    for (double& v : out) v = std::clamp(v, -infinity, infinity);
    return out;
  };
  const std::vector<CoinBigIndex> starts(model.row_start().begin(), model.row_start().end());
  const CoinPackedMatrix by_row(false, model.columns(), model.rows(), starts.back(),
                                model.entry_value().data(), model.entry_column().data(),
                                starts.data(), nullptr);
  solver->loadProblem(by_row, bounds(model.column_lower()).data(),
                      bounds(model.column_upper()).data(), model.cost().data(),
                      bounds(model.row_lower()).data(), bounds(model.row_upper()).data());
  const auto integers = model.integers();
  solver->setInteger(integers.data(), static_cast<int>(integers.size()));
}

CoinWarmStartBasis first_basis(const MipModel& model, const MipHints& hints) {
  CoinWarmStartBasis basis;
  basis.setSize(model.columns(), model.rows());
  for (int c = 0; c < model.columns(); ++c) {
    basis.setStructStatus(c, CoinWarmStartBasis::atLowerBound);
  }
  for (int r = 0; r < model.rows(); ++r) basis.setArtifStatus(r, CoinWarmStartBasis::basic);
  for (const auto& [column, row] : hints.basis) {
    basis.setStructStatus(column, CoinWarmStartBasis::basic);
    // A row's own column runs against it: at the row's upper bound it is at its lower one.
    basis.setArtifStatus(row, model.row_lower()[row] == -kMipInfinity
                                  ? CoinWarmStartBasis::atLowerBound
                                  : CoinWarmStartBasis::atUpperBound);
  }
  return basis;
}

double objective_of(const MipModel& model, std::span<const double> values) {
  double sum = 0;
  for (std::size_t c = 0; c < values.size(); ++c) sum += model.cost()[c] * values[c];
  return sum;
}

bool integral(const MipModel& model, std::span<const double> values) {
  return std::all_of(model.integers().begin(), model.integers().end(), [&](int c) {
    return std::abs(values[c] - std::round(values[c])) <= kIntegerTolerance;
  });
}

// Takes `values` as the result where they are better than what it has.
void improve(const MipModel& model, std::span<const double> values, MipResult* result) {
  std::vector<double> exact(values.begin(), values.end());
  for (const int c : model.integers()) exact[c] = std::round(exact[c]);
  const double objective = objective_of(model, exact);
  if (!(objective < result->objective)) return;
  result->values = std::move(exact);
  result->objective = objective;
}

// Lets the caller's rounding propose solutions during the search.
class Rounding final : public CbcHeuristic {
 public:
  Rounding(CbcModel& search, const MipModel* model, const MipHints* hints)  // NOLINT: CBC's way
      : CbcHeuristic(search), program_(model), hints_(hints) {}

  CbcHeuristic* clone() const override { return new Rounding(*this); }
  void resetModel(CbcModel* search) override { model_ = search; }

  int solution(double& objective, double* best) override {
    const double* relaxed = model_->solver()->getColSolution();
    std::vector<double> values(relaxed, relaxed + program_->columns());
    if (!hints_->round(values)) return 0;
    const double found = objective_of(*program_, values);
    if (!(found < objective)) return 0;
    objective = found;
    std::copy(values.begin(), values.end(), best);
    return 1;
  }

 private:
  const MipModel* program_;
  const MipHints* hints_;
};

void resolve_with_primal(OsiClpSolverInterface* solver) {
  solver->setHintParam(OsiDoDualInResolve, false, OsiHintDo);
  solver->resolve();
  solver->setHintParam(OsiDoDualInResolve, true, OsiHintDo);
}

// The relaxation at the root. False when that settles the result.
bool solve_root(const MipModel& model, const MipOptions& options, const MipHints& hints,
                OsiClpSolverInterface* solver, MipResult* result) {
  const auto limit = std::clamp<std::int64_t>(options.max_iterations, 0, INT_MAX);
  solver->setIntParam(OsiMaxNumIteration, static_cast<int>(limit));
  load(model, solver);
  if (hints.basis.empty()) {
    solver->initialSolve();
  } else {
    const CoinWarmStartBasis basis = first_basis(model, hints);
    solver->setWarmStart(&basis);
    resolve_with_primal(solver);
  }
  result->iterations = solver->getIterationCount();
  if (solver->isProvenPrimalInfeasible()) {
    result->status = MipStatus::kInfeasible;
    return false;
  }
  if (!solver->isProvenOptimal()) {
    result->status = solver->isIterationLimitReached() ? MipStatus::kLimit : MipStatus::kError;
    return false;
  }
  const std::span<const double> relaxed(solver->getColSolution(), model.columns());
  result->bound = solver->getObjValue();
  if (integral(model, relaxed)) {
    improve(model, relaxed, result);
  } else if (hints.round) {
    std::vector<double> values(relaxed.begin(), relaxed.end());
    if (hints.round(values)) improve(model, values, result);
  }
  return true;
}

bool close_enough(const MipOptions& options, const MipResult& result) {
  const double gap = result.objective - result.bound;
  return gap <= std::max(options.relative_gap, 1e-9) * std::max(1e-9, std::abs(result.objective));
}

// The best continuous columns for the integers found so far. Leaves the solver as it was.
void polish(const MipModel& model, OsiClpSolverInterface* solver, MipResult* result) {
  const std::unique_ptr<CoinWarmStart> basis(solver->getWarmStart());
  for (const int c : model.integers()) {
    solver->setColBounds(c, result->values[c], result->values[c]);
  }
  resolve_with_primal(solver);
  result->iterations += solver->getIterationCount();
  if (solver->isProvenOptimal()) {
    improve(model, {solver->getColSolution(), static_cast<std::size_t>(model.columns())}, result);
  }
  for (const int c : model.integers()) {
    solver->setColBounds(c, std::max(model.column_lower()[c], -solver->getInfinity()),
                         std::min(model.column_upper()[c], solver->getInfinity()));
  }
  solver->setWarmStart(basis.get());
}

// No cuts, no preprocessing, no strong branching and none of CBC's own heuristics: on the programs
// here each costs more than the nodes that it saves.
void search_tree(const MipModel& model, const MipOptions& options, const MipHints& hints,
                 OsiClpSolverInterface* solver, MipResult* result) {
  solver->setIntParam(OsiMaxNumIteration, INT_MAX);
  CbcModel search(*solver);
  search.setLogLevel(0);
  search.setMaximumNodes(options.max_nodes);
  const std::int64_t iterations_left = options.max_iterations - result->iterations;
  search.setMaximumNumberIterations(
      static_cast<int>(std::clamp<std::int64_t>(iterations_left, 0, INT_MAX)));
  search.setAllowableFractionGap(options.relative_gap);
  search.setAllowableGap(1e-9);
  search.setCutoffIncrement(1e-9);
  search.setIntegerTolerance(kIntegerTolerance);
  search.setNumberStrong(0);
  search.setNumberBeforeTrust(0);
  if (hints.round) {
    Rounding rounding(search, &model, &hints);
    search.addHeuristic(&rounding, "rounding");
  }
  if (!result->values.empty()) {
    search.setBestSolution(result->values.data(), model.columns(), result->objective, false);
  }
  search.branchAndBound(0);
  result->nodes = search.getNodeCount();
  result->iterations += search.getIterationCount();
  if (search.bestSolution() != nullptr) {
    improve(model, {search.bestSolution(), static_cast<std::size_t>(model.columns())}, result);
  }
  if (search.isProvenInfeasible() && result->values.empty()) {
    result->status = MipStatus::kInfeasible;
    return;
  }
  result->bound = std::min(std::max(result->bound, search.getBestPossibleObjValue()),
                           std::max(result->bound, result->objective));
  const bool limited = search.isNodeLimitReached() || search.status() != 0;
  if (result->values.empty()) {
    result->status = limited ? MipStatus::kLimit : MipStatus::kError;
  } else {
    result->status =
        limited && !close_enough(options, *result) ? MipStatus::kFeasible : MipStatus::kOptimal;
  }
}

// Without columns there is nothing to choose, and the solver is not made for it.
MipResult solve_empty(const MipModel& model) {
  MipResult result;
  result.status = MipStatus::kOptimal;
  for (int r = 0; r < model.rows(); ++r) {
    if (model.row_lower()[r] > 0 || model.row_upper()[r] < 0) {
      result.status = MipStatus::kInfeasible;
      return result;
    }
  }
  result.objective = result.bound = 0;
  return result;
}

MipResult solve_or_throw(const MipModel& model, const MipOptions& options, const MipHints& hints) {
  MipResult result;
  OsiClpSolverInterface solver;
  solver.setLogLevel(0);
  solver.messageHandler()->setLogLevel(0);
  solver.setHintParam(OsiDoReducePrint, true, OsiHintDo);
  if (!solve_root(model, options, hints, &solver, &result)) return result;
  if (!result.values.empty() && !close_enough(options, result)) polish(model, &solver, &result);
  if (!result.values.empty() && close_enough(options, result)) {
    result.status = MipStatus::kOptimal;
  } else if (options.max_nodes <= 0) {
    result.status = result.values.empty() ? MipStatus::kLimit : MipStatus::kFeasible;
  } else {
    search_tree(model, options, hints, &solver, &result);
  }
  return result;
}

}  // namespace

const char* to_string(MipStatus status) {
  switch (status) {
    case MipStatus::kOptimal:
      return "optimal";
    case MipStatus::kFeasible:
      return "feasible";
    case MipStatus::kInfeasible:
      return "infeasible";
    case MipStatus::kLimit:
      return "limit";
    case MipStatus::kError:
      return "error";
  }
  return "unknown";
}

int MipModel::add_column(double lower, double upper, double cost, bool integer) {
  SL_CHECK(lower <= upper && std::isfinite(cost), "a column's bounds or cost");
  column_lower_.push_back(lower);
  column_upper_.push_back(upper);
  cost_.push_back(cost);
  if (integer) integers_.push_back(columns() - 1);
  return columns() - 1;
}

int MipModel::add_row(double lower, double upper, std::span<const MipEntry> entries) {
  SL_CHECK(lower <= upper, "a row's bounds");
  for (const MipEntry& entry : entries) {
    SL_CHECK(entry.column >= 0 && entry.column < columns() && std::isfinite(entry.value),
             "an entry of a row");
    if (entry.value == 0) continue;
    entry_column_.push_back(entry.column);
    entry_value_.push_back(entry.value);
  }
  row_start_.push_back(static_cast<int>(entry_column_.size()));
  row_lower_.push_back(lower);
  row_upper_.push_back(upper);
  return rows() - 1;
}

MipResult solve(const MipModel& model, const MipOptions& options, const MipHints& hints) {
  if (model.columns() == 0) return solve_empty(model);
  try {
    return solve_or_throw(model, options, hints);
  } catch (const CoinError&) {
    return {};
  }
}

}  // namespace servelab
