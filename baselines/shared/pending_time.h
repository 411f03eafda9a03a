// What dLoRA's cluster policies estimate from requests that have ended (OSDI '24, 5.1 and 5.2): how
// long requests of an adapter execute, and how long a new one would wait at a replica.
#ifndef SERVELAB_BASELINES_SHARED_PENDING_TIME_H_
#define SERVELAB_BASELINES_SHARED_PENDING_TIME_H_

#include <cstddef>
#include <vector>

#include "engine/serve/policy.h"

namespace servelab {

// Average execution time by adapter: of its own finished requests, else of all, else `prior_s`.
class ExecutionHistory {
 public:
  void open(std::size_t adapters, double prior_s) {
    sums_.assign(adapters, Sum{});
    all_ = Sum{};
    prior_s_ = prior_s;
  }
  void add(AdapterId adapter, double seconds) {
    all_.add(seconds);
    if (adapter != kBaseModel) sums_[index(adapter)].add(seconds);
  }
  double seconds(AdapterId adapter) const {
    if (adapter != kBaseModel && sums_[index(adapter)].count > 0)
      return sums_[index(adapter)].mean();
    return seconds();
  }
  // Of the adapter's own requests, else `prior_s`.
  double own_seconds(AdapterId adapter) const {
    const bool known = adapter != kBaseModel && sums_[index(adapter)].count > 0;
    return known ? sums_[index(adapter)].mean() : prior_s_;
  }
  double seconds() const { return all_.count > 0 ? all_.mean() : prior_s_; }

 private:
  struct Sum {
    double total = 0;
    double count = 0;
    void add(double value) {
      total += value;
      ++count;
    }
    double mean() const { return total / count; }
  };
  std::vector<Sum> sums_;
  Sum all_;
  double prior_s_ = 0;
};

// How long a replica needs for the requests that it has, in seconds: batches of max_batch requests,
// full ones of one adapter merged (`merged_ratio` times as long), the rest mixed:
//   sum over adapters k of (full_k * merged_ratio + rest_k / max_batch) * L_k
double queueing_seconds(const ReplicaView& replica, const ExecutionHistory& history,
                        double merged_ratio);

// The same as dLoRA's artifact counts it, in batches; one that is not full does not count:
//   sum_k full_k * merged_ratio + floor(sum_k rest_k / max_batch)
double whole_batches(const ReplicaView& replica, double merged_ratio);

// Loading an adapter that is neither on the replica nor on its way there; else 0.
double load_seconds(const ReplicaView& replica, AdapterId id);

}  // namespace servelab

#endif  // SERVELAB_BASELINES_SHARED_PENDING_TIME_H_
