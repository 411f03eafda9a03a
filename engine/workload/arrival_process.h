// What an arrival process is made from: bounds, random streams, rates, and the trace that it
// follows.
#ifndef SERVELAB_WORKLOAD_ARRIVAL_PROCESS_H_
#define SERVELAB_WORKLOAD_ARRIVAL_PROCESS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/registry.h"
#include "engine/core/rng.h"
#include "engine/core/units.h"
#include "engine/workload/arrivals.h"
#include "engine/workload/function_trace.h"
#include "engine/workload/renewal.h"

namespace servelab {

class ArrivalGenerator {
 public:
  static constexpr std::size_t kNoBound = SIZE_MAX;

  explicit ArrivalGenerator(const ArrivalInputs& inputs);

  const ArrivalInputs& inputs() const { return inputs_; }
  const ArrivalSettings& settings() const { return inputs_.settings->arrivals; }
  std::size_t items() const { return inputs_.shares->size(); }
  std::size_t max_requests() const { return max_requests_; }  // kNoBound: as many as arrive
  TimeNs end() const { return end_; }                         // kNever: no bound
  ArrivalPlan& plan() { return plan_; }

  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    fail_at(inputs_, key, what);
  }
  // Every item draws from a stream of its own.
  RngStream stream(std::uint64_t item) const;
  // Of a generated process: as set, else the sum of the weights, else 1. Noted in the plan.
  double rate();

  // Merges these, up to the bounds, into the plan.
  void merge(std::vector<ProcessOfItem> processes);
  // One process per item with a share, made for its part of the rate.
  void per_item(
      const std::function<std::unique_ptr<ArrivalProcess>(std::uint32_t item, double rate)>& make);

  // The trace that the settings name, in bins of this length.
  FunctionTrace load(double bin_s);
  std::vector<std::uint32_t> item_of_function(const FunctionTrace& trace) const;
  // Notes what each item's calls over the whole trace come to.
  void note_shares(const FunctionTrace& trace, const std::vector<std::uint32_t>& item_of);
  // What a count of the trace is in arrivals per simulated second.
  double scale_of(const FunctionTrace& trace);

 private:
  std::size_t requests_of_rate() const;

  const ArrivalInputs& inputs_;
  std::size_t max_requests_ = kNoBound;
  TimeNs end_ = kNever;
  ArrivalPlan plan_;
};

// One way for requests to arrive. Each registers itself under the name that `arrivals.process` has.
class ArrivalKind {
 public:
  static constexpr const char* kRegistryName = "arrival process";
  virtual ~ArrivalKind() = default;

  // Keys of the arrivals map that change something; the others are refused.
  virtual std::vector<std::string> uses() const = 0;
  virtual bool has_own_end() const { return false; }  // neither requests nor duration_s needed
  virtual bool has_rate() const { return true; }      // that `requests_per_rate` could count by
  // Whether it says itself which adapter each request is for, from a trace.
  virtual bool follows_trace_adapters(const ArrivalSettings& /*settings*/) const { return false; }
  virtual void generate(ArrivalGenerator* to) const = 0;
};

// What the `gaps` setting names.
GapKind gap_kind_of(const std::string& name);

}  // namespace servelab

// On the last line of a process's file, outside any namespace.
#define SERVELAB_ARRIVALS(id, Class) SERVELAB_REGISTER(ArrivalKind, id, Class)

#endif  // SERVELAB_WORKLOAD_ARRIVAL_PROCESS_H_
