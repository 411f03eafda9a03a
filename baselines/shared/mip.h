// Mixed-integer linear programs, solved with CBC: rows and columns in, a result out. Deterministic
// (one thread, limits counted in nodes and simplex iterations, never in seconds) and silent.
#ifndef SERVELAB_BASELINES_SHARED_MIP_H_
#define SERVELAB_BASELINES_SHARED_MIP_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace servelab {

inline constexpr double kMipInfinity = std::numeric_limits<double>::infinity();

struct MipEntry {
  int column = 0;
  double value = 0;
};

// Minimise cost . v subject to row and column bounds; some columns are integers.
class MipModel {
 public:
  // Returns the column's index. Bounds may be infinite, but not NaN; lower <= upper.
  int add_column(double lower, double upper, double cost, bool integer);
  // lower <= sum of entries <= upper. A column at most once per row; zero values are dropped.
  // Returns the row's index.
  int add_row(double lower, double upper, std::span<const MipEntry> entries);

  int columns() const { return static_cast<int>(cost_.size()); }
  int rows() const { return static_cast<int>(row_lower_.size()); }
  std::int64_t nonzeros() const { return static_cast<std::int64_t>(entry_value_.size()); }

  std::span<const double> column_lower() const { return column_lower_; }
  std::span<const double> column_upper() const { return column_upper_; }
  std::span<const double> cost() const { return cost_; }
  std::span<const int> integers() const { return integers_; }  // columns, ascending
  std::span<const double> row_lower() const { return row_lower_; }
  std::span<const double> row_upper() const { return row_upper_; }
  // Row r has entries [row_start[r], row_start[r + 1]).
  std::span<const int> row_start() const { return row_start_; }
  std::span<const int> entry_column() const { return entry_column_; }
  std::span<const double> entry_value() const { return entry_value_; }

 private:
  std::vector<double> column_lower_, column_upper_, cost_, row_lower_, row_upper_, entry_value_;
  std::vector<int> integers_, entry_column_;
  std::vector<int> row_start_ = {0};
};

enum class MipStatus {
  kOptimal,     // within `relative_gap` of the optimum
  kFeasible,    // a limit was reached; the best solution so far
  kInfeasible,  // no point satisfies every row
  kLimit,       // a limit was reached before any solution was found
  kError,       // unbounded, abandoned for numerical trouble, or refused by the solver
};
const char* to_string(MipStatus status);

struct MipOptions {
  int max_nodes = 10'000;  // of branch and bound; 0: the root relaxation and its rounding alone
  std::int64_t max_iterations = 10'000'000;  // of the simplex method, over all nodes
  // The search ends when no solution can be better by more than this share of the objective.
  double relative_gap = 0;
};

// What the caller knows about its model. Both parts change the work and never what is feasible.
struct MipHints {
  // Turns a relaxed solution ([columns], changed in place) into a point that satisfies every row
  // and is integral where it must be; false where it cannot. Asked at each node.
  std::function<bool(std::span<double>)> round;
  // The first basis of the root relaxation: each of these rows is at its finite bound, with the
  // column basic in its place. Every other column starts at its lower bound, which is finite.
  struct Basic {
    int column = 0;
    int row = 0;
  };
  std::vector<Basic> basis;
};

struct MipResult {
  MipStatus status = MipStatus::kError;
  double objective = kMipInfinity;  // of `values`
  double bound = -kMipInfinity;     // no solution is below it
  std::vector<double> values;       // [columns], or empty; integer columns are exact integers
  int nodes = 0;
  std::int64_t iterations = 0;
};

// Throws nothing of the solver's own: what it cannot do is kError.
MipResult solve(const MipModel& model, const MipOptions& options, const MipHints& hints = {});

}  // namespace servelab

#endif  // SERVELAB_BASELINES_SHARED_MIP_H_
