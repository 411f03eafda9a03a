// The LoRA ranks of a set of requests, kept as requests come and go: a policy that routes by them
// must not look at every request.
#ifndef SERVELAB_SERVE_RANK_COUNTS_H_
#define SERVELAB_SERVE_RANK_COUNTS_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/core/check.h"

namespace servelab {

class RankCounts {
 public:
  // `rank` 0: a request of the base model, which is not counted.
  void add(int rank) {
    if (rank > 0) change(rank, 1);
  }
  void remove(int rank) {
    if (rank > 0) change(rank, -1);
  }

  std::int64_t requests() const { return requests_; }
  std::int64_t sum() const { return sum_; }
  int max() const { return max_; }  // 0: none

 private:
  void change(int rank, int by) {
    auto found = std::find_if(by_rank_.begin(), by_rank_.end(),
                              [rank](const auto& entry) { return entry.first <= rank; });
    if (found == by_rank_.end() || found->first != rank) {
      found = by_rank_.insert(found, {rank, 0});
    }
    found->second += by;
    SL_CHECK(found->second >= 0, "a set of requests holds the rank that leaves it");
    requests_ += by;
    sum_ += std::int64_t{by} * rank;
    const auto first = std::find_if(by_rank_.begin(), by_rank_.end(),
                                    [](const auto& entry) { return entry.second > 0; });
    max_ = first == by_rank_.end() ? 0 : first->first;
  }

  // Requests by every rank that was ever there, the largest first.
  std::vector<std::pair<int, std::int64_t>> by_rank_;
  std::int64_t requests_ = 0;
  std::int64_t sum_ = 0;
  int max_ = 0;
};

}  // namespace servelab

#endif  // SERVELAB_SERVE_RANK_COUNTS_H_
