#include "kernels/sampling.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace servelab::kernels {
namespace {

struct Candidate {
  float weight;  // exp((logit - largest) / temperature)
  std::int32_t token;
};

// Whether b is to be drawn from before a: more likely, or as likely with a smaller index.
bool less_likely(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight < b.weight : a.token > b.token;
}

// The first candidate at which the running sum of weights exceeds `target`; the last one that has
// any weight when rounding keeps the sum below it.
std::int32_t draw(const Candidate* begin, const Candidate* end, double target) {
  double sum = 0;
  std::int32_t last = begin->token;
  for (const Candidate* c = begin; c != end; ++c) {
    if (c->weight <= 0) continue;
    sum += c->weight;
    last = c->token;
    if (sum > target) break;
  }
  return last;
}

}  // namespace

std::int32_t argmax(const float* logits, int n) {
  // First the largest value, in independent lanes that any compiler turns into vectors; a NaN is
  // not greater than anything. Then where it stands first.
  constexpr int kLanes = 16;
  float lanes[kLanes];
  std::fill(std::begin(lanes), std::end(lanes), -std::numeric_limits<float>::infinity());
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      lanes[j] = logits[i + j] > lanes[j] ? logits[i + j] : lanes[j];
    }
  }
  float largest = *std::max_element(std::begin(lanes), std::end(lanes));
  for (; i < n; ++i) largest = logits[i] > largest ? logits[i] : largest;
  const float* const found = std::find(logits, logits + n, largest);
  return found == logits + n ? -1 : static_cast<std::int32_t>(found - logits);
}

std::int32_t sample_top_p(const float* logits, int n, float temperature, float top_p,
                          double uniform, void* scratch) {
  static_assert(sizeof(Candidate) == 8);
  auto* candidates = static_cast<Candidate*>(scratch);
  const std::int32_t best = argmax(logits, n);
  if (best < 0 || std::isinf(logits[best])) {  // +inf takes all; if all are -inf, so does the first
    return std::any_of(logits, logits + n, [](float x) { return std::isnan(x); }) ? -1 : best;
  }
  double total = 0;
  for (int i = 0; i < n; ++i) {
    if (std::isnan(logits[i])) return -1;
    candidates[i] = {std::exp((logits[i] - logits[best]) / temperature), i};
    total += candidates[i].weight;
  }
  // Nothing is cut: any order gives the same distribution.
  if (top_p >= 1) return draw(candidates, candidates + n, uniform * total);
  // A heap yields the few likely tokens without sorting the vocabulary; they gather at its end.
  Candidate* heap_end = candidates + n;
  std::make_heap(candidates, heap_end, less_likely);
  double mass = 0;
  while (heap_end != candidates && (heap_end == candidates + n || mass < top_p * total)) {
    std::pop_heap(candidates, heap_end, less_likely);
    --heap_end;
    mass += heap_end->weight;
  }
  std::reverse(heap_end, candidates + n);
  return draw(heap_end, candidates + n, uniform * mass);
}

}  // namespace servelab::kernels
