// Requests that decode a token each, step after step: what their next steps are, without looking at
// any of them. A step costs a few sums, whatever the batch; who joins or ends costs O(log of it).
//
// A batch is that of one plan and the steps that repeat it, or stands: it holds every running
// request of a replica, in their order, through steps with others (StepPlan::decode_all).
#ifndef SERVELAB_SERVE_DECODE_BATCH_H_
#define SERVELAB_SERVE_DECODE_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/core/check.h"
#include "engine/core/ids.h"
#include "engine/core/units.h"
#include "engine/serve/cost.h"
#include "engine/serve/recorder.h"

namespace servelab {

// A request as it joins, between two steps.
struct Decoding {
  RequestId id;
  AdapterId adapter;
  int rank = 0;
  std::int32_t context = 0;
  std::int32_t left = 0;  // output tokens, >= 1
  std::int32_t room = 0;  // tokens that its KV pages still take
  TimeNs last_token = 0;
};

class DecodeBatch {
 public:
  // Of a batch that stands.
  struct Member {
    RequestId id;
    AdapterId adapter;
    std::int64_t since;  // ended() when its request was told of all steps
    std::int64_t seq;    // grows with the order
  };

  // A page is `page_blocks` KV blocks, for `block_tokens` tokens of a request. Empties it.
  void begin(int block_tokens, int page_blocks, bool stands);
  void clear() { stands_ = false; }
  bool stands() const { return stands_; }

  // One of a plan's requests, before the first step that it is of.
  void add(std::int32_t left, std::int32_t room, TimeNs last_token) {
    if (left < first_end_) first_end_ = left;
    ++pages_[slot_of(room)];
    note_last(last_token);
  }
  // The next of the running requests.
  void join(const Decoding& request);
  // `request` is the member at `at`, which was told of all steps, and leaves after one. `is_last`:
  // no other of its adapter is a member.
  void leave(std::size_t at, const Decoding& request, bool is_last);

  std::span<const Member> members() const { return members_; }
  std::span<Member> members() { return members_; }
  std::size_t size() const { return members_.size(); }
  std::int64_t next_seq() const { return next_seq_; }
  // Distinct ones, in the order of their first requests.
  template <class Visit>
  void for_each_adapter(Visit visit) const {
    for (const First& first : firsts_) visit(first.adapter);
  }

  // Steps that have begun and ended, since begin().
  std::int64_t ended() const { return ended_; }
  // Steps that the requests of a plan were not told of: asked for when they are.
  std::int64_t untold() { return ended_ - std::exchange(told_, ended_); }
  bool in_step() const { return started_ != ended_; }
  std::int64_t first_end() const { return first_end_; }  // ended() when the first request ends
  TimeNs last_end() const { return last_end_; }          // of its latest step

  // KV blocks that its next step takes.
  std::int64_t next_blocks() const { return std::int64_t{pages_[next_page_]} * page_blocks_; }
  // Begins a step, for which those blocks were taken; or a plan's first, whose blocks its requests
  // have.
  void start();
  void start_first() { ++started_; }
  void add_to(BatchShape* shape) const;  // its next step
  // Ends one, and records the gaps between its tokens and those before.
  void end(TimeNs now, LatencyHistogram* itl);
  // The next request that ends with the step that has ended, in order; kNoRequest: none is left.
  RequestId pop_ended();

  // Blocks that were taken for requests that do not own them yet.
  std::int64_t owed_blocks() const { return owed_blocks_; }
  void pay(std::int64_t blocks) { owed_blocks_ -= blocks; }
  int page_blocks() const { return page_blocks_; }

 private:
  struct End {
    std::int64_t at;
    std::int64_t seq;
    RequestId id;
  };
  struct Group {  // of requests that had their latest token at the same time
    TimeNs last;
    std::int64_t count;
  };
  struct First {  // of an adapter
    AdapterId adapter;
    std::int64_t seq;
  };
  static bool later(const End& a, const End& b) {
    return a.at != b.at ? a.at > b.at : a.seq > b.seq;
  }
  std::size_t slot_of(std::int32_t room) const {
    SL_CHECK(room >= 0 && room < block_tokens_, "I4: a request holds pages that it does not need");
    const std::size_t slot = next_page_ + static_cast<std::size_t>(room);
    return slot < pages_.size() ? slot : slot - pages_.size();
  }
  void note_last(TimeNs last_token) {
    if (groups_.empty() || groups_.back().last != last_token) groups_.push_back({last_token, 0});
    ++groups_.back().count;
  }
  void list_adapter(const Member& first);

  int block_tokens_ = 1;
  int page_blocks_ = 1;
  bool stands_ = false;
  std::int64_t started_ = 0, ended_ = 0, told_ = 0;
  std::int64_t first_end_ = INT64_MAX;
  TimeNs last_end_ = 0;
  std::int64_t owed_blocks_ = 0;
  // Requests that need another page, by step from the next one to begin, modulo block_tokens.
  std::vector<std::int32_t> pages_;
  std::size_t next_page_ = 0;
  std::vector<Group> groups_;

  // Where it stands:
  std::vector<Member> members_;
  std::int64_t next_seq_ = 0;
  std::vector<End> ends_;      // a heap, the first in front
  std::vector<First> firsts_;  // by seq
  std::int64_t context_ = 0;   // sums over its requests
  std::int64_t lora_rows_ = 0;
  std::int64_t rank_rows_ = 0;
};

}  // namespace servelab

#endif  // SERVELAB_SERVE_DECODE_BATCH_H_
