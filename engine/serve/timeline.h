// The only source of time. Events have a total order: by time, then by kind (in the order of the
// enum), then by the sequence in which they were posted.
#ifndef SERVELAB_SERVE_TIMELINE_H_
#define SERVELAB_SERVE_TIMELINE_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <vector>

#include "engine/core/units.h"

namespace servelab {

// Completions come before arrivals and arrivals before periodic work, so that a plan made at an
// instant sees everything that happened at that instant.
enum class EventKind : std::uint8_t {
  kStepDone = 0,   // subject: replica << 32 | step slot
  kLoadDone = 1,   // subject: replica << 32 | load_subject() (backend.h)
  kArrival = 2,    // subject: request
  kMigrated = 3,   // subject: replica << 32 | request
  kRebalance = 4,  // subject: unused
};

struct Event {
  TimeNs at = 0;
  EventKind kind = EventKind::kArrival;
  std::uint64_t seq = 0;
  std::uint64_t subject = 0;
};

constexpr bool before(const Event& a, const Event& b) {
  if (a.at != b.at) return a.at < b.at;
  if (a.kind != b.kind) return a.kind < b.kind;
  return a.seq < b.seq;
}

class Timeline {
 public:
  virtual ~Timeline() = default;

  TimeNs now() const { return now_; }

  // `at` may not lie before now(). Returns the event's sequence number.
  std::uint64_t post(TimeNs at, EventKind kind, std::uint64_t subject);

  // The next event in order, with now() moved to its stamp; false when none is left.
  virtual bool next(Event* event) = 0;

  // Called once, when the run starts: time counts from here.
  virtual void begin() {}

  // Wall-clock timelines: the time right now, which runs on between events. now() otherwise.
  virtual TimeNs elapsed() const { return now_; }

  // True when another event stands at this very instant, so that a plan should wait for it.
  virtual bool more_now() const { return !heap_.empty() && heap_.front().at == now_; }

  // True when no more than `timers` events are posted, and nothing outside can post or has failed.
  virtual bool idle(std::size_t timers = 0) const { return heap_.size() <= timers; }

 protected:
  Event pop();

  TimeNs now_ = 0;
  std::uint64_t next_seq_ = 0;
  std::vector<Event> heap_;
};

// Jumps from event to event.
class VirtualTimeline final : public Timeline {
 public:
  bool next(Event* event) override;
};

// What a real backend measured and a replay needs: an event as it was delivered and, for the end of
// a step, where its time went.
struct DeliveredEvent {
  TimeNs at = 0;
  EventKind kind = EventKind::kArrival;
  std::uint64_t subject = 0;
};

// Delivers posted events in the order, and at the times, of an earlier run, whatever the times that
// they were posted for. `events` outlive it. Throws SpecError when the run asks for another course.
class ReplayTimeline final : public Timeline {
 public:
  explicit ReplayTimeline(const std::vector<DeliveredEvent>& events) : events_(events) {}
  bool next(Event* event) override;
  bool more_now() const override { return false; }

 private:
  const std::vector<DeliveredEvent>& events_;
  std::size_t next_ = 0;
};

// Waits for the wall clock. Stamps are strictly increasing, so that a run can be replayed in the
// same order in virtual time. Other threads hand in completions with post_now(); `expect_external`
// says how many of those are outstanding, so that next() knows whether to wait when nothing is
// posted.
class RealTimeline final : public Timeline {
 public:
  RealTimeline();
  bool next(Event* event) override;
  void begin() override;
  TimeNs elapsed() const override { return wall(); }
  bool more_now() const override { return false; }  // stamps are never equal
  bool idle(std::size_t timers = 0) const override;

  // Any thread: the event happened at this moment.
  void post_now(EventKind kind, std::uint64_t subject);
  void expect_external(int change);

  // Any thread: something outside has failed; next() throws it.
  void fail(std::exception_ptr failure);

 private:
  TimeNs wall() const;

  TimeNs epoch_ns_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Event> inbox_;    // guarded by mutex_
  int outstanding_ = 0;         // guarded by mutex_
  std::exception_ptr failure_;  // guarded by mutex_
};

}  // namespace servelab

#endif  // SERVELAB_SERVE_TIMELINE_H_
