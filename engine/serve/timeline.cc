#include "engine/serve/timeline.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/core/check.h"

namespace servelab {
namespace {

// std::*_heap keeps the largest element in front, so "larger" means "later".
bool later(const Event& a, const Event& b) { return before(b, a); }

}  // namespace

std::uint64_t Timeline::post(TimeNs at, EventKind kind, std::uint64_t subject) {
  SL_CHECK(at >= now_, "an event may not be posted in the past");
  heap_.push_back(Event{at, kind, next_seq_, subject});
  std::push_heap(heap_.begin(), heap_.end(), later);
  return next_seq_++;
}

Event Timeline::pop() {
  std::pop_heap(heap_.begin(), heap_.end(), later);
  const Event event = heap_.back();
  heap_.pop_back();
  return event;
}

bool VirtualTimeline::next(Event* event) {
  if (heap_.empty()) return false;
  *event = pop();
  now_ = event->at;
  return true;
}

bool ReplayTimeline::next(Event* event) {
  if (next_ == events_.size()) return false;
  const DeliveredEvent& delivered = events_[next_];
  const auto posted = std::find_if(heap_.begin(), heap_.end(), [&](const Event& e) {
    return e.kind == delivered.kind && e.subject == delivered.subject;
  });
  if (posted == heap_.end()) {
    throw SpecError("the replay left the recorded run at event " + std::to_string(next_) +
                    ": what happened there was never asked for");
  }
  *event = *posted;
  heap_.erase(posted);
  std::make_heap(heap_.begin(), heap_.end(), later);
  event->at = delivered.at;
  now_ = delivered.at;
  ++next_;
  return true;
}

RealTimeline::RealTimeline()
    : epoch_ns_(std::chrono::steady_clock::now().time_since_epoch().count()) {}

TimeNs RealTimeline::wall() const {
  return std::chrono::steady_clock::now().time_since_epoch().count() - epoch_ns_;
}

bool RealTimeline::next(Event* event) {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    if (!inbox_.empty()) {
      *event = inbox_.front();
      inbox_.erase(inbox_.begin());
      event->seq = next_seq_++;
      break;
    }
    const TimeNs wall_now = wall();
    if (!heap_.empty() && heap_.front().at <= wall_now) {
      *event = pop();
      event->at = wall_now;
      break;
    }
    if (heap_.empty() && outstanding_ == 0) return false;
    if (heap_.empty()) {
      wake_.wait(lock);
    } else {
      wake_.wait_for(lock, std::chrono::nanoseconds(heap_.front().at - wall_now));
    }
  }
  event->at = std::max(event->at, now_ + 1);
  now_ = event->at;
  return true;
}

void RealTimeline::begin() {
  const std::lock_guard<std::mutex> lock(mutex_);
  epoch_ns_ = std::chrono::steady_clock::now().time_since_epoch().count();
}

bool RealTimeline::idle(std::size_t timers) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_ == nullptr && heap_.size() <= timers && inbox_.empty() && outstanding_ == 0;
}

void RealTimeline::post_now(EventKind kind, std::uint64_t subject) {
  const std::lock_guard<std::mutex> lock(mutex_);
  inbox_.push_back(Event{wall(), kind, 0, subject});
  --outstanding_;
  wake_.notify_one();
}

void RealTimeline::fail(std::exception_ptr failure) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failure_ == nullptr) failure_ = std::move(failure);
  wake_.notify_one();
}

void RealTimeline::expect_external(int change) {
  const std::lock_guard<std::mutex> lock(mutex_);
  outstanding_ += change;
  wake_.notify_one();
}

}  // namespace servelab
