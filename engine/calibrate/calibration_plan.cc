#include "engine/calibrate/calibration_plan.h"

#include <set>
#include <utility>

namespace servelab {
namespace {

constexpr int kContext = 128;  // of decodes with adapters

using Steps = std::vector<PlannedStep>;

PlannedStep decodes(int requests, int context) {
  PlannedStep step;
  for (int i = 0; i < requests; ++i) step.slices.push_back({.tokens = 1, .context = context});
  return step;
}

void add_base_decodes(bool quick, Steps* out) {
  const std::vector<int> batches = quick ? std::vector{1, 2, 4, 8, 16, 32}
                                         : std::vector{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};
  for (const int batch : batches) {
    for (const int context : {16, kContext, 256, 512, kMostContext}) {
      if (batch * context > 16 * kMostContext || (quick && context == 256)) continue;
      out->push_back(decodes(batch, context));
    }
  }
}

// The kernel's rows: distinct adapters, one for all, half of the rows, and every rank at once.
void add_lora_decodes(LoraKernel kernel, bool quick, Steps* out) {
  const std::vector<int> batches =
      quick ? std::vector{1, 4, 16} : std::vector{1, 2, 4, 8, 12, 16, 24, 32};
  const std::vector<int>& ranks = calibrated_ranks();
  for (const int batch : batches) {
    if (kernels::traits(kernel).all_pairs && batch > 16) continue;  // work grows with its square
    PlannedStep mixed = decodes(batch, kContext);
    mixed.kernel = kernel;
    for (const int rank : ranks) {
      PlannedStep distinct = mixed, shared = mixed, half = mixed;
      for (int i = 0; i < batch; ++i) {
        const auto at = static_cast<std::size_t>(i);
        distinct.slices[at].rank = shared.slices[at].rank = rank;
        distinct.slices[at].adapter = half.slices[at].adapter = i;
        if (i % 2 == 0) half.slices[at].rank = rank;
      }
      out->push_back(std::move(distinct));
      const bool extras = (rank == 16 || rank == 64) && (batch == 4 || batch == 16);
      if (extras) out->push_back(std::move(shared));
      if (extras && !quick) out->push_back(std::move(half));
    }
    if (batch < 4) continue;
    for (int i = 0; i < batch; ++i) {
      const auto at = static_cast<std::size_t>(i);
      mixed.slices[at].rank = ranks[at % ranks.size()];
      mixed.slices[at].adapter = i;
    }
    out->push_back(std::move(mixed));
  }
}

void add_prefills(bool quick, Steps* out) {
  const std::vector<int> lengths =
      quick ? std::vector{2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}
            : std::vector{2,  3,  4,   6,   8,   12,  16,  24,  32,   48,
                          64, 96, 128, 192, 256, 384, 512, 768, 1024, kMostPrefill};
  for (const int tokens : lengths) {
    for (const int context : {0, 256}) {
      if (context > 0 && (tokens < 16 || tokens > 512 || (quick && tokens != 64))) continue;
      for (const int rank : {0, 16, 64}) {
        if (rank > 0 && (tokens < 8 || tokens > 512 || (quick && tokens % 3 != 1))) continue;
        for (const bool samples : {true, false}) {
          if (!samples && (rank > 0 || context > 0)) continue;
          PlannedStep step;
          step.slices.push_back({tokens, context, rank, 0, samples});
          out->push_back(std::move(step));
        }
      }
    }
  }
  for (const auto& [prompts, tokens] : {std::pair{4, 16}, {4, 64}, {8, 32}, {2, 128}}) {
    for (const int rank : {0, 16, 64}) {
      PlannedStep step;
      for (int i = 0; i < prompts; ++i) step.slices.push_back({tokens, 0, rank, i, true});
      out->push_back(std::move(step));
    }
  }
}

void add_mixed(bool quick, Steps* out) {
  for (const int batch : {4, 8, 16}) {
    for (const int tokens : {32, 128, 256}) {
      if (quick && tokens == 256) continue;
      for (const int rank : {0, 16}) {
        PlannedStep step = decodes(batch, kContext);
        for (std::size_t i = 0; i < step.slices.size(); ++i) {
          step.slices[i].rank = rank;
          step.slices[i].adapter = static_cast<int>(i);
        }
        step.slices.push_back({tokens, 0, rank, batch, true});
        out->push_back(std::move(step));
      }
    }
  }
}

}  // namespace

const std::vector<int>& calibrated_ranks() {
  static const std::vector<int> kRanks = {8, 16, 32, 64};
  return kRanks;
}

const std::vector<int>& core_rows() {
  static const std::vector<int> kRows = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, kMostPrefill};
  return kRows;
}

std::int64_t PlannedStep::tokens() const {
  std::int64_t sum = 0;
  for (const PlannedSlice& slice : slices) sum += slice.tokens;
  return sum;
}

BatchShape PlannedStep::shape() const {
  BatchShape shape;
  std::set<std::pair<int, int>> seen;
  for (const PlannedSlice& slice : slices) {
    shape.add_slice(slice.tokens, slice.context, slice.samples);
    if (slice.rank == 0) continue;
    shape.add_lora_rows(slice.tokens, slice.context, slice.rank);
    if (seen.emplace(slice.rank, slice.adapter).second) shape.add_lora_adapter(slice.rank);
  }
  return shape;
}

std::vector<PlannedStep> planned_steps(bool quick) {
  Steps steps;
  add_base_decodes(quick, &steps);
  for (const auto& kernel : kernels::kLoraKinds) add_lora_decodes(kernel.kind, quick, &steps);
  add_prefills(quick, &steps);
  add_mixed(quick, &steps);
  return steps;
}

std::vector<PlannedSchedule> planned_schedules(bool quick) {
  std::vector<PlannedSchedule> schedules;
  for (const int adapters : {4, 16, 64}) {
    for (const int slots : {2, 8, 32}) {
      if (slots > adapters) continue;
      for (const int batch : {2, 8, 32}) {
        for (const int requests : {32, 256, 1024}) {
          if (quick && (requests == 1024 || batch == 8)) continue;
          schedules.push_back({adapters, slots, batch, requests, 16});
        }
      }
    }
  }
  return schedules;
}

}  // namespace servelab
