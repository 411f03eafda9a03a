// S-LoRA's bound on the memory that a batch will ever need.
#ifndef SERVELAB_BASELINES_SHARED_ADMISSION_BOUND_H_
#define SERVELAB_BASELINES_SHARED_ADMISSION_BOUND_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/core/ids.h"

namespace servelab {

// S-LoRA's admission bound: with `left_i` tokens still to come and `held_i` held, the peak of the
// batch's KV is max over i of left_i * i + held_1 + ... + held_i, longest remaining first.
class AdmissionBound {
 public:
  void clear() {
    entries_.clear();
    decoded_ = 0;
  }
  std::size_t size() const { return entries_.size(); }
  void append(std::int64_t held, std::int64_t left, RequestId id = kNoRequest) {
    entries_.push_back({held - decoded_, left + decoded_, id});
  }
  void sort() { std::sort(entries_.begin(), entries_.end(), longer); }
  // Into sorted entries.
  void insert(std::int64_t held, std::int64_t left, RequestId id = kNoRequest) {
    const Entry entry{held - decoded_, left + decoded_, id};
    entries_.insert(std::upper_bound(entries_.begin(), entries_.end(), entry, longer), entry);
  }
  void erase(RequestId id) {
    const auto is_it = [id](const Entry& entry) { return entry.id == id; };
    const auto found = std::find_if(entries_.begin(), entries_.end(), is_it);
    if (found != entries_.end()) entries_.erase(found);
  }
  // Each of them decodes so many tokens, which leaves their order as it is.
  void decode(std::int64_t tokens) { decoded_ += tokens; }
  std::int64_t peak_tokens() const {
    std::int64_t held = 0, peak = 0, i = 0;
    for (const Entry& entry : entries_) {
      held += entry.held + decoded_;
      peak = std::max(peak, (entry.left - decoded_) * ++i + held);
    }
    return peak;
  }

 private:
  struct Entry {  // before any was decoded
    std::int64_t held, left;
    RequestId id;
  };
  static bool longer(const Entry& a, const Entry& b) {
    return a.left != b.left ? a.left > b.left : a.held < b.held;
  }
  std::vector<Entry> entries_;
  std::int64_t decoded_ = 0;
};

}  // namespace servelab

#endif  // SERVELAB_BASELINES_SHARED_ADMISSION_BOUND_H_
