// S-LoRA's bound on the memory that a batch will ever need.
#ifndef SERVELAB_BASELINES_SHARED_ADMISSION_BOUND_H_
#define SERVELAB_BASELINES_SHARED_ADMISSION_BOUND_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace servelab {

// S-LoRA's admission bound: with `left_i` tokens still to come and `held_i` held, the peak of the
// batch's KV is max over i of left_i * i + held_1 + ... + held_i, longest remaining first.
class AdmissionBound {
 public:
  void clear() { entries_.clear(); }
  std::size_t size() const { return entries_.size(); }
  void append(std::int64_t held, std::int64_t left) { entries_.push_back({held, left}); }
  void sort() { std::sort(entries_.begin(), entries_.end(), longer); }
  void insert(std::int64_t held, std::int64_t left) {  // into sorted entries
    const Entry entry{held, left};
    entries_.insert(std::upper_bound(entries_.begin(), entries_.end(), entry, longer), entry);
  }
  std::int64_t peak_tokens() const {
    std::int64_t held = 0, peak = 0, i = 0;
    for (const Entry& entry : entries_) {
      held += entry.held;
      peak = std::max(peak, entry.left * ++i + held);
    }
    return peak;
  }

 private:
  struct Entry {
    std::int64_t held, left;
  };
  static bool longer(const Entry& a, const Entry& b) {
    return a.left != b.left ? a.left > b.left : a.held < b.held;
  }
  std::vector<Entry> entries_;
};

}  // namespace servelab

#endif  // SERVELAB_BASELINES_SHARED_ADMISSION_BOUND_H_
