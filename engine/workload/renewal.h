// Renewal processes whose rate may change over time, and their merging into one stream.
#ifndef SERVELAB_WORKLOAD_RENEWAL_H_
#define SERVELAB_WORKLOAD_RENEWAL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/core/rng.h"
#include "engine/core/units.h"
#include "engine/workload/arrivals.h"

namespace servelab {

inline constexpr double kLatestSeconds = 9e9;  // in nanoseconds this still fits

// A source of increasing arrival stamps.
class ArrivalProcess {
 public:
  virtual ~ArrivalProcess() = default;
  virtual TimeNs next() = 0;  // kNever: no further arrival before kLatestSeconds
};

// Gaps of mean 1 in units of expected arrivals, at a constant rate.
class SteadyProcess final : public ArrivalProcess {
 public:
  SteadyProcess(RngStream rng, GapSampler gaps, double rate_per_s, double start_s = 0)
      : rng_(rng), gaps_(gaps), rate_per_s_(rate_per_s), at_s_(start_s) {}
  TimeNs next() override;

 private:
  RngStream rng_;
  GapSampler gaps_;
  double rate_per_s_;
  double at_s_;
};

// A rate that is constant within bins and repeats after the last bin. The gaps (mean 1) are
// measured in expected arrivals: with exponential gaps this is the non-stationary Poisson process.
// `gaps_of_bin`, where set, gives the gaps for an arrival that follows one in that bin.
class BinnedProcess final : public ArrivalProcess {
 public:
  using GapsOfBin = std::function<const GapSampler&(std::size_t bin)>;
  BinnedProcess(RngStream rng, GapSampler gaps, std::vector<double> rates_per_s, double bin_s,
                GapsOfBin gaps_of_bin = nullptr);
  TimeNs next() override;

 private:
  RngStream rng_;
  GapSampler gaps_;
  std::vector<double> rates_per_s_;
  double bin_s_;
  GapsOfBin gaps_of_bin_;
  double at_s_ = 0;
  std::uint64_t bin_ = 0;  // counts on over the repetitions
  bool silent_ = true;     // all rates are zero
};

// The placement paper's unpredictable arrivals (5.2): every `update_s` the process becomes Poisson
// or log-normal at random, and its rate is multiplied or divided by `factor`, within limits.
class SwitchingProcess final : public ArrivalProcess {
 public:
  SwitchingProcess(RngStream gaps_rng, RngStream switch_rng, const ArrivalSettings& settings,
                   double rate_per_s);
  TimeNs next() override;

 private:
  void update();

  RngStream gaps_rng_;
  RngStream switch_rng_;
  GapSampler poisson_;
  GapSampler log_normal_;
  bool is_poisson_ = true;
  double base_rate_per_s_;
  double rate_per_s_;
  double update_s_;
  double factor_;
  double max_factor_;
  double at_s_ = 0;
  double next_update_s_;
};

struct ProcessOfItem {
  std::uint32_t item = kAnyItem;
  std::unique_ptr<ArrivalProcess> process;
};

// Merges by (time, position in `processes`), up to `max_requests` arrivals before `end`.
std::vector<Arrival> merge_processes(std::vector<ProcessOfItem>* processes,
                                     std::size_t max_requests, TimeNs end);

}  // namespace servelab

#endif  // SERVELAB_WORKLOAD_RENEWAL_H_
