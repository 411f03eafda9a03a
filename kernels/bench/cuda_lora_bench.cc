// LoRA at decode and prefill shapes: validated against the naive result, then timed over inputs
// that together exceed the L2 cache.
#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>

#include "kernels/bench/cuda_bench.h"
#include "kernels/cuda/lora_kernels.h"

namespace servelab::kernels::cuda {
namespace {

constexpr int kHidden = 4096;
constexpr std::size_t kElement = 2;  // bytes of a bf16

struct LoraCase {
  LoraKind kind;
  int rows;
  int adapters;            // rows / adapters rows each
  std::vector<int> ranks;  // adapter i has rank ranks[i % ranks.size()] in slots of the widest
  int targets = 1;
  bool wgmma = false;  // Hopper's shrink, where lora() may take another
};

std::string name_of(const LoraCase& c) {
  constexpr const char* kNames[] = {"lora_sgmv", "lora_bgmv", "lora_mbgmv", "lora_einsum"};
  return std::string(kNames[static_cast<int>(c.kind)]) + (c.wgmma ? "_wgmma" : "");
}

std::string shape_of(const LoraCase& c) {
  std::string ranks = std::to_string(c.ranks[0]);
  if (c.ranks.size() > 1) ranks += ".." + std::to_string(c.ranks.back());
  return "rows=" + std::to_string(c.rows) + " adapters=" + std::to_string(c.adapters) +
         " rank=" + ranks + " hidden=" + std::to_string(kHidden) +
         " targets=" + std::to_string(c.targets);
}

int width_of(const LoraCase& c) {
  return (*std::max_element(c.ranks.begin(), c.ranks.end()) + 7) / 8 * 8;
}

// Several batches with adapters, inputs and outputs of their own: `sets` of them, so that what one
// call reads is not in the cache from the call before.
class LoraData {
 public:
  LoraData(const LoraCase& c, int sets, cudaStream_t stream)
      : case_(c),
        sets_(sets),
        width_(width_of(c)),
        adapters_(bytes_of_adapter() * static_cast<std::size_t>(sets * c.adapters * c.targets)),
        x_(bytes_of_rows()),
        before_(bytes_of_rows()) {
    fill_uniform(adapters_, 1, 0.05, stream);
    fill_uniform(x_, 2, 1, stream);
    fill_uniform(before_, 3, 1, stream);
    check(cudaStreamSynchronize(stream), "random inputs");
    for (int i = 0; i < c.targets; ++i) {
      y_.push_back(std::make_unique<Buffer>(bytes_of_rows()));
      pairs_.push_back(std::make_unique<BufferOf<LoraPair>>(pairs_of(i)));
    }
    make_slots();
    workspace_ = std::make_unique<Buffer>(lora_workspace(c.kind, batch(0), c.targets));
  }

  void reset(cudaStream_t stream) const {
    for (const auto& y : y_) {
      check(cudaMemcpyAsync(y->as(), before_.as(), y->bytes(), cudaMemcpyDeviceToDevice, stream),
            "a copy");
    }
  }

  void enqueue(int set, cudaStream_t stream) const {
    LoraTarget targets[kMaxLoraTargets];
    for (int i = 0; i < case_.targets; ++i) {
      targets[i] = {pairs_[static_cast<std::size_t>(i)]->get(), kHidden, kHidden,
                    rows_at(*y_[static_cast<std::size_t>(i)], set)};
    }
    const auto call = [&](auto function, auto... first) {
      return function(first..., case_.kind, batch(set), targets, case_.targets, rows_at(x_, set),
                      kHidden, kHidden, workspace_->as(), workspace_->bytes(), stream);
    };
    check(case_.wgmma ? call(lora_with, SegmentShrink::kWgmma) : call(lora), "lora");
  }

  std::int64_t count_wrong(int set, cudaStream_t stream) const {
    std::int64_t wrong = 0;
    for (int i = 0; i < case_.targets; ++i) {
      const auto at = static_cast<std::size_t>(i);
      wrong += count_wrong_lora(pairs_[at]->get(), slots_->get() + set * case_.rows, case_.rows,
                                kHidden, kHidden, rows_at(x_, set), rows_at(before_, set),
                                rows_at(*y_[at], set), stream);
    }
    return wrong;
  }

 private:
  std::size_t bytes_of_adapter() const {
    return kElement * 2 * kHidden * static_cast<std::size_t>(width_);
  }
  std::size_t bytes_of_rows() const {
    return kElement * kHidden * static_cast<std::size_t>(case_.rows * sets_);
  }
  char* rows_at(const Buffer& buffer, int set) const {
    return buffer.as<char>() + kElement * kHidden * static_cast<std::size_t>(case_.rows * set);
  }

  // Adapters are random up to their rank, zeros from there to their width.
  std::vector<LoraPair> pairs_of(int target) const {
    const int count = sets_ * case_.adapters;
    std::vector<LoraPair> pairs;
    for (int i = 0; i < count; ++i) {
      const int rank = case_.ranks[static_cast<std::size_t>(i) % case_.ranks.size()];
      char* const a =
          adapters_.as<char>() + bytes_of_adapter() * static_cast<std::size_t>(target * count + i);
      char* const b = a + bytes_of_adapter() / 2;
      const std::size_t row = kElement * static_cast<std::size_t>(width_);
      const std::size_t used = kElement * static_cast<std::size_t>(rank);
      if (rank < width_) {
        check(cudaMemset(a + used * kHidden, 0, (row - used) * kHidden), "cudaMemset");
        check(cudaMemset2D(b + used, row, 0, row - used, kHidden), "cudaMemset2D");
      }
      pairs.push_back({a, b, rank, width_, 0.5f});
    }
    return pairs;
  }

  void make_slots() {
    const int each = case_.rows / case_.adapters;
    std::vector<std::int32_t> slots;
    std::vector<std::int32_t> adapters;
    std::vector<std::int32_t> begin;
    for (int i = 0; i < sets_ * case_.rows; ++i) slots.push_back(i / each);
    for (int i = 0; i < sets_ * case_.adapters; ++i) adapters.push_back(i);
    for (int i = 0; i <= case_.adapters; ++i) begin.push_back(i * each);
    slots_ = std::make_unique<BufferOf<std::int32_t>>(slots);
    adapter_slots_ = std::make_unique<BufferOf<std::int32_t>>(adapters);
    segment_begin_ = std::make_unique<BufferOf<std::int32_t>>(begin);
  }

  LoraBatch batch(int set) const {
    LoraBatch batch;
    batch.rows = case_.rows;
    batch.width = width_;
    batch.slots = slots_->get() + set * case_.rows;
    batch.segments = batch.distinct = case_.adapters;
    batch.segment_begin = segment_begin_->get();
    batch.segment_slots = batch.distinct_slots = adapter_slots_->get() + set * case_.adapters;
    batch.max_segment_rows = case_.rows / case_.adapters;
    return batch;
  }

  LoraCase case_;
  int sets_;
  int width_;
  Buffer adapters_;
  Buffer x_;
  Buffer before_;
  std::vector<std::unique_ptr<Buffer>> y_;
  std::vector<std::unique_ptr<BufferOf<LoraPair>>> pairs_;
  std::unique_ptr<BufferOf<std::int32_t>> slots_;
  std::unique_ptr<BufferOf<std::int32_t>> adapter_slots_;
  std::unique_ptr<BufferOf<std::int32_t>> segment_begin_;
  std::unique_ptr<Buffer> workspace_;
};

// What the kind must read and write, once, and compute. Distinct adapters: every one is read.
void count_work(const LoraCase& c, Row& row) {
  const bool padded = traits(c.kind).padded;
  double ranks = 0;  // of all adapters
  for (int i = 0; i < c.adapters; ++i) {
    ranks += padded ? width_of(c) : c.ranks[static_cast<std::size_t>(i) % c.ranks.size()];
  }
  const double rows_of_each = traits(c.kind).all_pairs ? c.rows : c.rows / c.adapters;
  const double weights = ranks * 2 * kHidden * c.targets;
  row.bytes = kElement * (weights + c.rows * kHidden * (1.0 + 2.0 * c.targets));
  row.flops = 2 * weights * rows_of_each;
}

void run(const LoraCase& c, Report& report, double budget_s, cudaStream_t stream) {
  Row row{name_of(c), shape_of(c), 0, 0, 0, 0, 0};
  count_work(c, row);
  row.launches = 2;  // at least: tensor cores may split the input and need a third
  constexpr int kMostSets = 1024;
  const double wanted = 3.0 * static_cast<double>(report.card().l2_bytes) / row.bytes;
  const int sets = std::clamp(static_cast<int>(wanted) + 1, 2, kMostSets);
  const LoraData data(c, sets, stream);
  data.reset(stream);
  for (int i = 0; i < sets; ++i) data.enqueue(i, stream);
  check(cudaStreamSynchronize(stream), "lora");
  row.wrong = data.count_wrong(0, stream) + data.count_wrong(sets - 1, stream);
  row.seconds =
      seconds_of_each(stream, sets, budget_s, [&](int set) { data.enqueue(set, stream); });
  report.add(row);
}

std::vector<LoraCase> cases(bool hopper) {
  std::vector<LoraCase> result;
  for (const LoraKind kind : {LoraKind::kBgmv, LoraKind::kMbgmv}) {
    for (const int batch : {1, 4, 16, 32, 64, 128, 256}) {
      for (const int rank : {8, 16, 32, 64, 128}) result.push_back({kind, batch, batch, {rank}});
    }
    for (const int batch : {32, 256}) {
      result.push_back({kind, batch, batch, {8, 16, 32, 64, 128}});
      result.push_back({kind, batch, batch, {16}, 3});
    }
  }
  constexpr int kTokens = 2048;
  for (const int adapters : {1, 8, 32}) {
    for (const int rank : {8, 16, 32, 64, 128}) {
      result.push_back({LoraKind::kSgmv, kTokens, adapters, {rank}});
    }
  }
  for (const int rank : {16, 64, 128}) {
    if (hopper) result.push_back({LoraKind::kSgmv, kTokens, 8, {rank}, 1, true});
  }
  if (hopper) result.push_back({LoraKind::kSgmv, 32, 32, {16}, 1, true});
  result.push_back({LoraKind::kSgmv, kTokens, 8, {16}, 3});
  result.push_back({LoraKind::kSgmv, 32, 32, {16}});
  for (const int batch : {8, 32}) {
    for (const int rank : {16, 64}) result.push_back({LoraKind::kEinsum, batch, batch, {rank}});
  }
  return result;
}

}  // namespace

void bench_lora(Report& report, cudaStream_t stream, double seconds) {
  const std::vector<LoraCase> all = cases(report.card().major == 9);
  for (const LoraCase& c : all) {
    run(c, report, seconds / static_cast<double>(all.size()), stream);
  }
}

}  // namespace servelab::kernels::cuda
