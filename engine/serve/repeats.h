// What a replica knows of its latest plan: to carry it out again by itself (StepPlan::repeats), and
// to log it once however often it is made.
#ifndef SERVELAB_SERVE_REPEATS_H_
#define SERVELAB_SERVE_REPEATS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/core/check.h"
#include "engine/core/ids.h"
#include "engine/core/units.h"
#include "engine/serve/plan.h"

namespace servelab {

// The plan of the step in flight, where all of its requests decode.
struct Repeats {
  std::int64_t left = 0;  // more times, before the policy is asked
  bool possible = false;  // as far as the plan itself says
  bool when_full = false;
  std::int32_t least_left = 0;  // output tokens of the request that ends first
  bool even = false;            // all of its requests had a token when the step before ended
  TimeNs last_end = 0;          // of the latest step that ended
  std::int64_t owed = 0;        // steps that its requests were not told of
  std::int64_t taken = 0;       // blocks of requests that do not have them yet
  // Requests that need another page of KV, by step from the next one on, modulo block_tokens.
  std::vector<std::int32_t> pages;
  std::size_t next_page = 0;
  int blocks_per_page = 1;
  // Since the policy was last told.
  std::int64_t steps = 0;
  std::int64_t repeated = 0;
  TimeNs duration = 0;
  TimeNs switching = 0;

  void begin(bool is_possible, int block_tokens, int page_blocks) {
    possible = even = is_possible;
    least_left = INT32_MAX;
    blocks_per_page = page_blocks;
    if (possible) pages.assign(static_cast<std::size_t>(block_tokens), 0);
    next_page = 0;
    steps = repeated = 0;
    duration = switching = 0;
  }
  // A request of the step: output tokens that it has left, when it had its latest, and how many
  // more tokens its pages hold once the step has ended.
  void add(std::int32_t left_of_it, TimeNs last_token, std::int32_t room) {
    if (left_of_it < least_left) least_left = left_of_it;
    even = even && last_token == last_end;
    SL_CHECK(static_cast<std::size_t>(room) < pages.size(),
             "I4: a request holds pages that it does not need");
    ++pages[static_cast<std::size_t>(room)];
  }
};

// The plan that the decision log ends with.
struct LoggedPlan {
  StepMode mode;
  ModelId model{};
  AdapterId merged = kBaseModel;
  std::vector<Slice> slices;
  std::int64_t times = 0;  // 0: it did more than run slices
  TimeNs last = 0;         // when it was made the last time
  std::size_t line = 0;    // of the text
};

}  // namespace servelab

#endif  // SERVELAB_SERVE_REPEATS_H_
