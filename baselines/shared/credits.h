// dLoRA's credits (OSDI '24, A.1, Algorithm 3): an adapter whose requests overtake pays those that
// they displace; one that has been displaced for long is "starving" and goes first.
#ifndef SERVELAB_BASELINES_SHARED_CREDITS_H_
#define SERVELAB_BASELINES_SHARED_CREDITS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/serve/view.h"

namespace servelab {

// Requests in exactly one of two batches. Both inputs sorted by id.
struct BatchDifference {
  std::vector<RequestId> displaced;   // in first-come order's batch, but not served
  std::vector<RequestId> overtaking;  // served, but not in first-come order's batch
  void compute(const std::vector<RequestId>& fcfs, const std::vector<RequestId>& served) {
    displaced.clear();
    overtaking.clear();
    std::set_difference(fcfs.begin(), fcfs.end(), served.begin(), served.end(),
                        std::back_inserter(displaced));
    std::set_difference(served.begin(), served.end(), fcfs.begin(), fcfs.end(),
                        std::back_inserter(overtaking));
  }
};

class CreditBook {
 public:
  struct Limits {
    double initial = 0;
    double starve = 0;  // above: starving
    double normal = 0;  // below: no longer starving
  };

  bool empty() const { return credit_.empty(); }
  void open(std::size_t adapters, const Limits& limits) {
    limits_ = limits;
    credit_.assign(adapters + 1, limits.initial);  // the base model last
    starving_.assign(adapters + 1, false);
  }

  double credit(AdapterId id) const { return credit_[slot(id)]; }
  bool starving(AdapterId id) const { return starving_[slot(id)]; }

  // Re-reads the thresholds for the adapters that have requests; true when any of them starves.
  bool update(std::span<const AdapterId> active) {
    bool any = false;
    for (const AdapterId id : active) {
      const std::size_t i = slot(id);
      if (starving_[i] ? credit_[i] < limits_.normal : credit_[i] > limits_.starve) {
        starving_[i] = !starving_[i];
      }
      any = any || starving_[i];
    }
    return any;
  }

  // Each displaced request's adapter receives `unit` from the adapter of a request that overtook
  // it, or from `otherwise` when the served batch is merely smaller.
  void transfer(const ReplicaView& view, const BatchDifference& difference, double unit,
                AdapterId otherwise) {
    for (std::size_t i = 0; i < difference.displaced.size(); ++i) {
      const AdapterId payer =
          difference.overtaking.empty()
              ? otherwise
              : view.request(difference.overtaking[i % difference.overtaking.size()]).adapter();
      credit_[slot(payer)] -= unit;
      credit_[slot(view.request(difference.displaced[i]).adapter())] += unit;
    }
  }

 private:
  std::size_t slot(AdapterId id) const { return id == kBaseModel ? credit_.size() - 1 : index(id); }
  Limits limits_;
  std::vector<double> credit_;
  std::vector<bool> starving_;
};

}  // namespace servelab

#endif  // SERVELAB_BASELINES_SHARED_CREDITS_H_
