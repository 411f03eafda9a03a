// The part of the queue that needs no more room for adapters: for policies that pass over requests
// whose adapter has no slot, and must not look at each of them in every step.
#ifndef SERVELAB_BASELINES_SHARED_HELD_WAITING_H_
#define SERVELAB_BASELINES_SHARED_HELD_WAITING_H_

#include <algorithm>
#include <functional>
#include <vector>

#include "engine/serve/view.h"

namespace servelab {

// Waiting requests whose adapter is on the device or on its way there, and those without one, in
// the order of the queue. However many others wait: begin() costs O(adapters held + requests that
// run), and pop() O(log of the adapters held). Reused between steps.
class HeldWaiting {
 public:
  // Those that came after `after`, without those of adapters for which `left_out(adapter)`.
  template <class LeftOut>
  void begin(const ReplicaView& view, RequestId after, LeftOut left_out) {
    view_ = &view;
    heads_.clear();
    for (const UnitModel& entry : view.unit().models) add(view.first_waiting(entry.model), after);
    const AdapterPool& pool = view.adapters();
    for (AdapterId id = pool.oldest(); id != pool.kNone; id = pool.newer(id)) {
      if (!left_out(id)) add(view.first_waiting(id), after);
    }
    std::make_heap(heads_.begin(), heads_.end(), std::greater<>());
  }

  bool empty() const { return heads_.empty(); }
  RequestId front() const { return heads_.front(); }
  void pop() {  // on to the next
    const RequestId next = view_->next_waiting(front());
    drop();
    if (next == kNoRequest) return;
    heads_.push_back(next);
    std::push_heap(heads_.begin(), heads_.end(), std::greater<>());
  }
  void drop() {  // without the others of its adapter
    std::pop_heap(heads_.begin(), heads_.end(), std::greater<>());
    heads_.pop_back();
  }

 private:
  void add(RequestId head, RequestId after) {
    while (head != kNoRequest && head <= after) head = view_->next_waiting(head);
    if (head != kNoRequest) heads_.push_back(head);
  }

  const ReplicaView* view_ = nullptr;
  std::vector<RequestId> heads_;  // a heap, the oldest in front: one of each adapter, or model
};

}  // namespace servelab

#endif  // SERVELAB_BASELINES_SHARED_HELD_WAITING_H_
