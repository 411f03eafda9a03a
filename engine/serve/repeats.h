// What a replica knows of its latest plan: to carry it out again by itself (StepPlan::repeats), and
// to log it once however often it is made.
#ifndef SERVELAB_SERVE_REPEATS_H_
#define SERVELAB_SERVE_REPEATS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/core/ids.h"
#include "engine/core/units.h"
#include "engine/serve/decode_batch.h"
#include "engine/serve/plan.h"

namespace servelab {

// The plan of the step in flight, where all of its requests decode.
struct Repeats {
  std::int64_t left = 0;  // more times, before the policy is asked
  bool possible = false;  // as far as the plan itself says
  bool when_full = false;
  // Since the policy was last told.
  std::int64_t steps = 0;
  std::int64_t repeated = 0;
  TimeNs duration = 0;
  TimeNs switching = 0;

  void begin(bool is_possible) {
    possible = is_possible;
    steps = repeated = 0;
    duration = switching = 0;
  }
};

// The plan that the decision log ends with.
struct LoggedPlan {
  StepMode mode;
  ModelId model{};
  AdapterId merged = kBaseModel;
  std::vector<Slice> slices;
  // It was to decode all (StepPlan::decode_all): before `slices` come the members of the batch up
  // to `until`, and those of them that have `left` since.
  bool decode_all = false;
  std::int64_t until = 0;
  std::vector<DecodeBatch::Member> left;
  std::int64_t times = 0;  // 0: it did more than run slices
  TimeNs last = 0;         // when it was made the last time
  std::size_t line = 0;    // of the text
};

}  // namespace servelab

#endif  // SERVELAB_SERVE_REPEATS_H_
