#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <numeric>

#include "kernels/bench/benches.h"
#include "kernels/bench/model.h"

namespace servelab::kernels {
namespace {

constexpr DType kType = DType::kBf16;
constexpr int kRows = 8;  // of the decode step, each with an adapter of its own
constexpr int kRank = 16;
constexpr int kTargets = 4;  // q, k, v, o: all kHidden x kHidden

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::fabs(double{a[i]} - b[i]) / (1 + std::fabs(b[i])));
  }
  return worst;
}

// Adapters of a decode step, for as many copies as the model has.
class Adapters {
 public:
  Adapters()
      : a_(packed_bytes(kType, kRank, kHidden) * kPairs),
        b_(packed_bytes(kType, kHidden, kRank) * kPairs) {
    const Memory rows = random_memory(DType::kF32, std::size_t{kHidden} * kRank, 3);
    for (std::size_t i = 0; i < kPairs; ++i) {
      char* a = static_cast<char*>(a_.data()) + packed_bytes(kType, kRank, kHidden) * i;
      char* b = static_cast<char*>(b_.data()) + packed_bytes(kType, kHidden, kRank) * i;
      pack_panels(DType::kF32, rows.data(), kHidden, kRank, kHidden, kType, a, 0, 1);
      pack_panels(DType::kF32, rows.data(), kRank, kHidden, kRank, kType, b, 0, panels_of(kHidden));
      pairs_.push_back({{kType, kRank, kHidden, a}, {kType, kHidden, kRank, b}, kRank, 0.5f});
    }
    for (std::size_t i = 0; i < kPairs; ++i) {
      segments_.push_back({static_cast<int>(i % kRows), 1, &pairs_[i]});
    }
  }
  // One target of one layer: a segment for each row.
  LoraBatch batch(LoraKind kind, int copy, int layer, int target) const {
    const int at = ((copy * kLayers + layer) * kTargets + target) * kRows;
    return {kind, segments_.data() + at, kRows, kRows, kRank};
  }
  static double bytes_per_step() {
    return static_cast<double>(kLayers * kTargets * kRows) *
           static_cast<double>(packed_bytes(kType, kRank, kHidden) +
                               packed_bytes(kType, kHidden, kRank));
  }

 private:
  static constexpr std::size_t kPairs = std::size_t{kCopies} * kLayers * kTargets * kRows;
  Memory a_;
  Memory b_;
  std::vector<LoraPair> pairs_;
  std::vector<LoraRows> segments_;
};

// Buffers and one decode step's LoRA: targets [begin, end) of a layer at a time, as an engine
// would.
class LoraStep {
 public:
  LoraStep()
      : x_(random_memory(kType, std::size_t{kRows} * kHidden, 4)),
        t_(std::size_t{kTargets} * kRows * kRank * 4),
        y_(std::size_t{kTargets} * kRows * kHidden * 4) {}

  void run(Team& team, LoraKind kind, int copy) {
    team.run([&](int part) {
      std::vector<float> scratch(std::size_t{kRows} * kRank);
      for (int layer = 0; layer < kLayers; ++layer) {
        run_targets(team, kind, copy, layer, 0, 3, scratch.data(), part);
        run_targets(team, kind, copy, layer, 3, 4, scratch.data(), part);
      }
    });
  }

  // y of the first layer's targets by some table of operations.
  std::vector<float> result(const Ops& ops, LoraKind kind) {
    constexpr std::size_t kSize = std::size_t{kTargets} * kRows * kHidden;
    std::fill(y_.floats(), y_.floats() + kSize, 0.0f);
    std::vector<float> scratch(std::size_t{kRows} * kRank);
    for (int target = 0; target < kTargets; ++target) {
      const LoraBatch batch = adapters_.batch(kind, 0, 0, target);
      lora_shrink(ops, batch, x_.data(), kHidden, t(target), kRank, scratch.data(), 0, 1);
      lora_expand(ops, batch, t(target), kRank, y(target), kHidden, 0, kRows, 0, kHidden);
    }
    return {y_.floats(), y_.floats() + kSize};
  }

 private:
  float* t(int target) const { return t_.floats() + target * kRows * kRank; }
  float* y(int target) const { return y_.floats() + target * kRows * kHidden; }

  void run_targets(Team& team, LoraKind kind, int copy, int layer, int begin, int end,
                   float* scratch, int part) {
    const Ops& best = ops(best_isa());
    const int parts = team.size();
    for (int target = begin; target < end; ++target) {
      lora_shrink(best, adapters_.batch(kind, copy, layer, target), x_.data(), kHidden, t(target),
                  kRank, scratch, part, parts);
    }
    team.meet();
    const int panels = panels_of(kHidden);
    for (int target = begin; target < end; ++target) {
      lora_expand(best, adapters_.batch(kind, copy, layer, target), t(target), kRank, y(target),
                  kHidden, 0, kRows, panels * part / parts * kPanelColumns,
                  panels * (part + 1) / parts * kPanelColumns);
    }
    team.meet();
  }

  Adapters adapters_;
  Memory x_;
  Memory t_;
  Memory y_;
};

void bench_lora(Team& team, Model& model) {
  LoraStep step;
  const double alone = seconds([&] { model.run(team, kRows); });
  std::printf(
      "\nLoRA: %d rows with %d adapters of rank %d on q, k, v, o; %.1f %% of the weights' "
      "bytes\n%-10s %10.3f ms\n",
      kRows, kRows, kRank, 100 * Adapters::bytes_per_step() / model.bytes(), "base", alone * 1e3);
  for (const LoraTraits& row : kLoraKinds) {
    const LoraKind kind = row.kind;
    const double error = largest_difference(step.result(ops(best_isa()), kind),
                                            step.result(ops(Isa::kReference), kind));
    if (!(error < 1e-2)) {
      std::printf("%-10s WRONG: off by %g\n", row.name, error);
      continue;
    }
    int copy = 0;
    const double both = seconds([&] {
      model.run(team, kRows);
      step.run(team, kind, copy = (copy + 1) % kCopies);
    });
    std::printf("%-10s %10.3f ms more, %5.1f %% of the base\n", row.name, (both - alone) * 1e3,
                100 * (both - alone) / alone);
  }
}

// Sequences of `positions` tokens each, in one cache for each layer.
class AttentionLoad {
 public:
  AttentionLoad(int sequences, int positions)
      : positions_(positions),
        keys_(random_memory(kType, elements(sequences), 5)),
        values_(random_memory(kType, elements(sequences), 6)),
        q_(random_memory(DType::kF32, std::size_t{kMostRows} * kHidden, 7)),
        out_(std::size_t{kMostRows} * kHidden * 2),
        blocks_(static_cast<std::size_t>(sequences * positions / kBlockTokens)) {
    std::iota(blocks_.begin(), blocks_.end(), 0);
  }

  void run(const Ops& ops, int sequence, int head, int tokens, void* scratch) {
    const KvCache cache = this->cache();
    const AttentionTask task{positions_ - tokens, tokens,
                             blocks_.data() + sequence * positions_ / kBlockTokens};
    ops.attention(cache, task, head, 1, q_.floats(), kHidden, out_.data(), kHidden, 0, tokens,
                  scratch);
  }
  KvCache cache() const {
    return {kType, keys_.data(), values_.data(), kHeads, kHeadDim, kBlockTokens};
  }
  std::vector<float> result(int rows) const {
    std::vector<float> wide(static_cast<std::size_t>(rows) * kHidden);
    ops(Isa::kReference).widen(kType, out_.data(), wide.data(), rows * kHidden);
    return wide;
  }

 private:
  static constexpr int kBlockTokens = 16;
  std::size_t elements(int sequences) const {
    return static_cast<std::size_t>(sequences * positions_) * kHidden;
  }
  int positions_;
  Memory keys_;
  Memory values_;
  Memory q_;
  Memory out_;
  std::vector<std::int32_t> blocks_;
};

// All layers' attention of `sequences` x `tokens` queries; heads are dealt to threads.
double time_attention(Team& team, AttentionLoad& load, int sequences, int tokens) {
  std::vector<Memory> scratch;
  for (int part = 0; part < team.size(); ++part)
    scratch.emplace_back(attention_scratch(load.cache(), 1));
  return seconds([&] {
    team.run([&](int part) {
      for (int layer = 0; layer < kLayers; ++layer) {
        for (int piece = part; piece < sequences * kHeads; piece += team.size()) {
          load.run(ops(best_isa()), piece / kHeads, piece % kHeads, tokens,
                   scratch[static_cast<std::size_t>(part)].data());
        }
        team.meet();
      }
    });
  });
}

void bench_attention(Team& team, const Machine& machine, double prefill_s) {
  std::printf("\nattention over %d heads x %d, %d layers\n", kHeads, kHeadDim, kLayers);
  AttentionLoad prompt(1, kMostRows);
  Memory scratch(attention_scratch(prompt.cache(), 1));
  prompt.run(ops(Isa::kReference), 0, 3, 64, scratch.data());
  const std::vector<float> expected = prompt.result(64);
  prompt.run(ops(best_isa()), 0, 3, 64, scratch.data());
  const double error = largest_difference(prompt.result(64), expected);
  if (!(error < 2e-2)) {
    std::printf("WRONG: off by %g\n", error);
    return;
  }
  const double prefill = time_attention(team, prompt, 1, kMostRows);
  std::printf("prefill of %d tokens  %8.3f ms, %5.1f %% of the linear layers\n", kMostRows,
              prefill * 1e3, 100 * prefill / prefill_s);
  constexpr int kSequences = 64;
  constexpr int kContext = 4096;  // the caches exceed any cache of the processor
  AttentionLoad batch(kSequences, kContext);
  const double decode = time_attention(team, batch, kSequences, 1);
  const double bytes = 2.0 * 2 * kLayers * kSequences * kContext * kHidden;
  std::printf("decode of %d x %d tokens %8.3f ms, %5.1f GB/s, %5.1f %% of the bandwidth\n",
              kSequences, kContext, decode * 1e3, bytes / decode * 1e-9,
              100 * bytes / decode / machine.bytes_per_s);
}

void bench_elementwise(Team& team, double prefill_s) {
  const Ops& best = ops(best_isa());
  const Memory x = random_memory(DType::kF32, std::size_t{kMostRows} * 2 * kIntermediate, 8);
  const Memory out(std::size_t{kMostRows} * kIntermediate * 2);
  const Memory table = random_memory(DType::kF32, std::size_t{kMostRows} * kHeadDim, 9);
  std::vector<std::int32_t> positions(kMostRows);
  std::iota(positions.begin(), positions.end(), 0);
  const double time = seconds([&] {
    team.run([&](int part) {
      const int begin = kMostRows * part / team.size();
      const int rows = kMostRows * (part + 1) / team.size() - begin;
      char* to = static_cast<char*>(out.data());
      float* wide = x.floats() + std::int64_t{begin} * 2 * kIntermediate;
      for (int layer = 0; layer < kLayers; ++layer) {
        for (int i = 0; i < 2; ++i) {
          best.rms_norm(wide, kHidden, table.floats(), 1e-5f, kHidden, kType,
                        to + begin * kHidden * 2, kHidden, rows);
        }
        best.rope(wide, 3 * kHidden, positions.data() + begin, table.floats(), table.floats(),
                  2 * kHeads, kHeadDim, rows);
        best.swiglu(wide, wide + kIntermediate, 2 * kIntermediate, kIntermediate, kType,
                    to + begin * kIntermediate * 2, kIntermediate, rows);
      }
    });
  });
  std::printf(
      "\nnorms, rotary embedding and gating of %d tokens %8.3f ms, %5.1f %% of the linear "
      "layers\n",
      kMostRows, time * 1e3, 100 * time / prefill_s);
}

}  // namespace

void bench_ops(Team& team, const Machine& machine) {
  const Memory weights = random_memory(kType, std::size_t{kVocabulary} * kHidden, 2);
  Model model(kLlama134m, {.isa = best_isa()}, kType, team.size(), weights, kCopies);
  bench_lora(team, model);
  const double prefill = seconds([&] { model.run(team, kMostRows); });
  bench_attention(team, machine, prefill);
  bench_elementwise(team, prefill);
}

}  // namespace servelab::kernels
