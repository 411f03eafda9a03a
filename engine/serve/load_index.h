// The least loaded of many replicas: a tournament, in which a replica whose load changes plays its
// O(log n) games again.
#ifndef SERVELAB_SERVE_LOAD_INDEX_H_
#define SERVELAB_SERVE_LOAD_INDEX_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/core/check.h"

namespace servelab {

class LoadIndex {
 public:
  // `count` >= 1 of them, all of load 0.
  explicit LoadIndex(std::size_t count)
      : leaves_(std::bit_ceil(count)), loads_(count), winners_(2 * leaves_, kNobody) {
    SL_CHECK(count >= 1, "somebody is the least loaded");
    for (std::size_t i = 0; i < count; ++i) winners_[leaves_ + i] = static_cast<std::uint32_t>(i);
    for (std::size_t node = leaves_ - 1; node >= 1; --node) play(node);
  }

  void set(std::size_t which, std::size_t load) {
    loads_[which] = load;
    for (std::size_t node = (leaves_ + which) / 2; node >= 1; node /= 2) {
      const std::uint32_t before = winners_[node];
      play(node);
      if (before != which && winners_[node] == before) return;  // nobody above has seen a change
    }
  }

  std::size_t least() const { return winners_[1]; }  // the first of equals

 private:
  static constexpr std::uint32_t kNobody = UINT32_MAX;
  void play(std::size_t node) {
    const std::uint32_t left = winners_[2 * node], right = winners_[2 * node + 1];
    winners_[node] = right == kNobody || loads_[left] <= loads_[right] ? left : right;
  }

  std::size_t leaves_;
  std::vector<std::size_t> loads_;
  std::vector<std::uint32_t> winners_;  // by node: 1 is the root, of i they are 2 i and 2 i + 1
};

}  // namespace servelab

#endif  // SERVELAB_SERVE_LOAD_INDEX_H_
