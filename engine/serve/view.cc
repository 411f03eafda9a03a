#include "engine/serve/view.h"

#include <algorithm>

namespace servelab {

void FcfsQueue::insert(RequestId id) {
  if (items_.size() == head_ || items_.back() < id) {
    items_.push_back(id);
    return;
  }
  const auto begin = items_.begin() + static_cast<std::ptrdiff_t>(head_);
  const auto at = std::lower_bound(begin, items_.end(), id);
  if (head_ == 0 || items_.end() - at < at - begin) {
    items_.insert(at, id);
    return;
  }
  *std::move(begin, at, begin - 1) = id;
  --head_;
}

void FcfsQueue::erase(RequestId id) {
  const auto begin = items_.begin() + static_cast<std::ptrdiff_t>(head_);
  const auto found = std::lower_bound(begin, items_.end(), id);
  SL_CHECK(found != items_.end() && *found == id, "a queue does not hold the request");
  if (items_.end() - found < found - begin) {
    items_.erase(found);
    return;
  }
  std::move_backward(begin, found, found + 1);
  ++head_;
  // Give the room in front back once it is most of the vector: amortised O(1) per removal.
  if (head_ >= 64 && head_ * 2 >= items_.size()) {
    items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(head_));
    head_ = 0;
  }
}

const ReplicaView& ClusterView::least_loaded(const RoutedRequest& request) const {
  const std::span<const ReplicaView* const> among = candidates(request);
  if (among.size() == replicas_.size()) return *replicas_[loads_->least()];
  return **std::min_element(
      among.begin(), among.end(),
      [](const ReplicaView* a, const ReplicaView* b) { return a->unfinished() < b->unfinished(); });
}

}  // namespace servelab
