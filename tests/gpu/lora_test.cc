#include "kernels/cuda/lora.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include "kernels/cuda/lora_kernels.h"
#include "tests/gpu/device.h"
#include "tests/gpu/lora_adapter.h"

namespace servelab::kernels::cuda {
namespace {

constexpr LoraKind kKinds[] = {LoraKind::kBgmv, LoraKind::kMbgmv, LoraKind::kSgmv,
                               LoraKind::kEinsum};
constexpr float kBetweenRows = -77;  // what lies between the rows of y, exact in every type

int round_up_8(int n) { return (n + 7) / 8 * 8; }

// A device that executes threads one after another gets small shapes only, and so does one under a
// sanitizer (check.py).
bool is_slow() {
  if (std::getenv("SERVELAB_SMALL_TESTS") != nullptr) return true;
  int multiprocessors = 0;
  static_cast<void>(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  return multiprocessors <= 4;
}

struct Shape {
  int in = 64;
  std::vector<int> outs;   // of each target
  std::vector<int> ranks;  // of each adapter
  std::vector<int> segment_rows;
  bool padded = false;  // slots all as wide as the widest adapter
};

struct Target {
  int out = 0;
  std::vector<LoraAdapter> adapters;
  std::unique_ptr<DeviceVector<LoraPair>> pairs;  // from [1] on those of the slots
  std::vector<float> y;
};

// A batch and what it must give.
class Case {
 public:
  Case(DType type, DType y_type, const Shape& shape, Random& random)
      : type_(type), y_type_(y_type), in_(shape.in) {
    make_rows(shape, random);
    ldx_ = in_ + 8;
    x_.assign(static_cast<std::size_t>(rows_ * ldx_), std::nanf(""));
    for (int i = 0; i < rows_; ++i) {
      for (int k = 0; k < in_; ++k) x_[static_cast<std::size_t>(i * ldx_ + k)] = random.real();
    }
    device_x_ = std::make_unique<DeviceTensor>(type, x_);
    ldy_ = *std::max_element(shape.outs.begin(), shape.outs.end()) + 16;
    for (const int out : shape.outs) targets_.push_back(make_target(shape, out, random));
  }

  int rows() const { return rows_; }
  const std::vector<Target>& targets() const { return targets_; }
  const std::vector<std::int32_t>& slots() const { return slots_; }
  std::int64_t ldy() const { return ldy_; }

  LoraBatch batch() const {
    LoraBatch batch;
    batch.type = type_;
    batch.y_type = y_type_;
    batch.rows = rows_;
    batch.width = width_;
    batch.slots = device_slots_->get();
    batch.segments = static_cast<int>(segment_slots_.size());
    batch.segment_begin = device_begin_->get();
    batch.segment_slots = device_segment_slots_->get();
    batch.max_segment_rows = longest_;
    batch.distinct = static_cast<int>(distinct_.size());
    batch.distinct_slots = device_distinct_->get();
    return batch;
  }

  // Each target's y after the call, with the workspace poisoned by `poison` before. Empty where the
  // device lacks this shrink.
  std::vector<std::vector<char>> run(LoraKind kind, unsigned char poison,
                                     std::optional<SegmentShrink> shrink = {}) const {
    return run(kind, batch(), device_x_->data(), poison, 0, shrink);
  }

  // With a workspace of `rows`: in turns.
  std::vector<std::vector<char>> run_in_turns(LoraKind kind, int rows) const {
    LoraBatch turn = batch();
    turn.rows = rows;
    const std::size_t bytes = lora_workspace(kind, turn, static_cast<int>(targets_.size()));
    return run(kind, batch(), device_x_->data(), 0xff, 0, {}, bytes);
  }

  // One row alone.
  std::vector<std::vector<char>> run_row(LoraKind kind, int row) const {
    LoraBatch one = batch();
    one.rows = 1;
    one.slots += row;
    const char* const x = static_cast<const char*>(device_x_->data()) + row * ldx_ * 2;
    return run(kind, one, x, 0xff, row, {});
  }

  // y += scale * B (A x) in double, and the magnitude of what rounding t changes.
  struct Expected {
    double y;
    double from_t;    // scale * sum |t| |B|
    double from_sum;  // scale * sum |x| |A| |B|
  };
  using Rows = std::vector<std::vector<Expected>>;
  std::vector<Rows> expected() const {  // of each target
    std::vector<Rows> result;
    for (const Target& target : targets_) {
      Rows rows;
      for (int row = 0; row < rows_; ++row) rows.push_back(expected_row(target, row));
      result.push_back(rows);
    }
    return result;
  }

 private:
  std::vector<Expected> expected_row(const Target& target, int row) const {
    std::vector<Expected> result;
    for (int o = 0; o < target.out; ++o) {
      result.push_back({target.y[static_cast<std::size_t>(row * ldy_ + o)], 0, 0});
    }
    const int slot = slots_[static_cast<std::size_t>(row)];
    if (slot < 0) return result;
    const LoraAdapter& adapter = target.adapters[static_cast<std::size_t>(slot)];
    for (int r = 0; r < adapter.rank; ++r) {
      double t = 0;
      double terms = 0;
      for (int k = 0; k < in_; ++k) {
        const double product = double{x_[static_cast<std::size_t>(row * ldx_ + k)]} *
                               adapter.a[static_cast<std::size_t>(r * in_ + k)];
        t += product;
        terms += std::fabs(product);
      }
      for (int o = 0; o < target.out; ++o) {
        const double b = adapter.b[static_cast<std::size_t>(o * adapter.width + r)];
        Expected& to = result[static_cast<std::size_t>(o)];
        to.y += kLoraScale * t * b;
        to.from_t += kLoraScale * std::fabs(t * b);
        to.from_sum += kLoraScale * terms * std::fabs(b);
      }
    }
    return result;
  }

  void make_rows(const Shape& shape, Random& random) {
    const int leading = random.whole(0, 2);  // rows of no segment, before and after
    slots_.assign(static_cast<std::size_t>(leading), -1);
    std::vector<std::int32_t> begin;
    for (const int count : shape.segment_rows) {
      const int slot = random.whole(-1, static_cast<int>(shape.ranks.size()) - 1);
      begin.push_back(static_cast<std::int32_t>(slots_.size()));
      segment_slots_.push_back(slot);
      slots_.insert(slots_.end(), static_cast<std::size_t>(count), slot);
      longest_ = std::max(longest_, count);
    }
    begin.push_back(static_cast<std::int32_t>(slots_.size()));
    slots_.insert(slots_.end(), static_cast<std::size_t>(random.whole(0, 2)), -1);
    rows_ = static_cast<int>(slots_.size());
    for (std::size_t i = 0; i < shape.ranks.size(); ++i) {
      const auto slot = static_cast<std::int32_t>(i);
      if (std::find(slots_.begin(), slots_.end(), slot) != slots_.end()) distinct_.push_back(slot);
    }
    width_ = round_up_8(*std::max_element(shape.ranks.begin(), shape.ranks.end()));
    device_slots_ = std::make_unique<DeviceVector<std::int32_t>>(slots_);
    device_begin_ = std::make_unique<DeviceVector<std::int32_t>>(begin);
    device_segment_slots_ = std::make_unique<DeviceVector<std::int32_t>>(segment_slots_);
    device_distinct_ = std::make_unique<DeviceVector<std::int32_t>>(distinct_);
  }

  Target make_target(const Shape& shape, int out, Random& random) const {
    Target target;
    target.out = out;
    std::vector<LoraPair> pairs;
    for (const int rank : shape.ranks) {
      const int own = random.whole(0, 5) == 0 ? 0 : rank;  // 0: not for this layer
      const int width = shape.padded ? width_ : round_up_8(rank);
      target.adapters.emplace_back(type_, in_, out, own, width, random);
      pairs.push_back(target.adapters.back().pair());
    }
    // Before the first slot, where a row of slot -1 must not look, lies a pair that changes
    // results.
    target.adapters.emplace_back(type_, in_, out, 8, 8, random);
    pairs.insert(pairs.begin(), target.adapters.back().pair());
    target.pairs = std::make_unique<DeviceVector<LoraPair>>(pairs);
    target.y.assign(static_cast<std::size_t>(rows_ * ldy_), kBetweenRows);
    for (int i = 0; i < rows_; ++i) {
      for (int o = 0; o < out; ++o) {
        target.y[static_cast<std::size_t>(i * ldy_ + o)] = random.real(4);
      }
    }
    const DeviceTensor rounded(y_type_, target.y);
    return target;
  }

  std::vector<std::vector<char>> run(LoraKind kind, const LoraBatch& batch, const void* x,
                                     unsigned char poison, int first_row,
                                     std::optional<SegmentShrink> shrink,
                                     std::size_t workspace_bytes = 0) const {
    std::vector<std::unique_ptr<DeviceTensor>> ys;
    std::vector<LoraTarget> targets;
    for (const Target& target : targets_) {
      std::vector<float> y = target.y;
      ys.push_back(std::make_unique<DeviceTensor>(y_type_, y));
      char* const first =
          ys.back()->as<char>() + first_row * ldy_ * static_cast<int>(bytes_of(y_type_));
      targets.push_back({target.pairs->get() + 1, in_, target.out, first});
    }
    const int count = static_cast<int>(targets.size());
    const std::vector<unsigned char> poisoned(
        workspace_bytes > 0 ? workspace_bytes : lora_workspace(kind, batch, count), poison);
    const DeviceVector<unsigned char> workspace(poisoned);
    const auto call = [&](auto function, auto... first) {
      return function(first..., kind, batch, targets.data(), count, x, ldx_, ldy_, workspace.data(),
                      poisoned.size(), nullptr);
    };
    const cudaError_t error = shrink ? call(lora_with, *shrink) : call(lora);
    if (error == cudaErrorNotSupported && shrink == SegmentShrink::kWgmma) return {};
    EXPECT_EQ(error, cudaSuccess);
    EXPECT_TRUE(workspace.intact());
    std::vector<std::vector<char>> result;
    for (const auto& y : ys) {
      EXPECT_TRUE(y->intact());
      result.push_back(y->download());
    }
    return result;
  }

  DType type_;
  DType y_type_;
  int in_;
  int rows_ = 0;
  int width_ = 0;
  int longest_ = 0;
  std::int64_t ldx_ = 0;
  std::int64_t ldy_ = 0;
  std::vector<float> x_;
  std::vector<std::int32_t> slots_;
  std::vector<std::int32_t> segment_slots_;
  std::vector<std::int32_t> distinct_;
  std::vector<Target> targets_;
  std::unique_ptr<DeviceTensor> device_x_;
  std::unique_ptr<DeviceVector<std::int32_t>> device_slots_;
  std::unique_ptr<DeviceVector<std::int32_t>> device_begin_;
  std::unique_ptr<DeviceVector<std::int32_t>> device_segment_slots_;
  std::unique_ptr<DeviceVector<std::int32_t>> device_distinct_;
};

class LoraTest : public DeviceTypeTest {
 protected:
  static const char* kind_name(LoraKind kind) {
    constexpr const char* kNames[] = {"sgmv", "bgmv", "mbgmv", "einsum"};
    return kNames[static_cast<int>(kind)];
  }

  void expect_definition(const Case& c, const std::vector<Case::Rows>& expected, LoraKind kind,
                         DType y_type, const std::vector<std::vector<char>>& results) const {
    const bool by_rows = kind == LoraKind::kBgmv || kind == LoraKind::kMbgmv;
    for (std::size_t j = 0; j < results.size(); ++j) {
      const Target& target = c.targets()[j];
      for (int row = 0; row < c.rows(); ++row) {
        for (int o = 0; o < c.ldy(); ++o) {
          const float got = ref::load(y_type, results[j].data(), row * c.ldy() + o);
          if (o >= target.out) {
            ASSERT_EQ(got, kBetweenRows) << kind_name(kind) << ": written between rows";
            continue;
          }
          const Case::Expected& e =
              expected[j][static_cast<std::size_t>(row)][static_cast<std::size_t>(o)];
          const double sum_error = 1e-6 * e.from_sum + (by_rows ? 0 : rounding(type()) * e.from_t);
          ASSERT_TRUE(close(got, static_cast<float>(e.y), y_type, static_cast<float>(sum_error), 1))
              << kind_name(kind) << " target " << j << " row " << row << " of " << c.rows()
              << " slot " << c.slots()[static_cast<std::size_t>(row)] << " column " << o;
        }
      }
    }
  }

  void check(const Shape& shape, DType y_type, Random& random) const {
    const Case c(type(), y_type, shape, random);
    const std::vector<Case::Rows> expected = c.expected();
    for (const LoraKind kind : kKinds) {
      const auto results = c.run(kind, 0xff);
      expect_definition(c, expected, kind, y_type, results);
      if (HasFatalFailure()) return;
      EXPECT_EQ(c.run(kind, 0x3c), results) << kind_name(kind) << ": other bits the second time";
    }
  }

  static Shape random_shape(Random& random, int max_rows) {
    constexpr int kRanks[] = {1, 2, 3, 5, 8, 9, 16, 17, 24, 33, 40, 64, 72, 100, 127, 128};
    Shape shape;
    shape.in = 8 * random.whole(1, 80);
    for (int i = random.whole(1, kMaxLoraTargets); i > 0; --i) {
      shape.outs.push_back(8 * random.whole(1, 32));
    }
    const int largest = random.whole(0, 15);
    for (int i = random.whole(1, 4); i > 0; --i) {
      shape.ranks.push_back(kRanks[random.whole(0, largest)]);
    }
    for (int i = random.whole(1, 5); i > 0; --i) {
      constexpr int kLengths[] = {0, 1, 1, 2, 17};
      shape.segment_rows.push_back(kLengths[random.whole(0, 4)]);
    }
    shape.segment_rows.push_back(random.whole(1, max_rows));
    shape.padded = random.whole(0, 1) == 1;
    return shape;
  }
};

TEST_P(LoraTest, EveryKindMatchesTheDefinition) {
  Random random(21);
  const int trials = is_slow() ? 8 : 40;
  for (int trial = 0; trial < trials; ++trial) {
    SCOPED_TRACE("trial " + std::to_string(trial));
    const DType y_type = trial % 2 == 0 ? type() : DType::kF32;
    check(random_shape(random, is_slow() ? 20 : 300), y_type, random);
    if (HasFatalFailure()) return;
  }
}

TEST_P(LoraTest, RowsOfSeveralTilesAndSteps) {
  Random random(22);
  // More than a tile of rows and of columns, with a ragged end of each.
  check({64, {192, 64}, {16}, {70, 66}, false}, type(), random);
  // More input than one pass of the row kinds' warps.
  check({4352, {64}, {8, 3}, {1, 0, 2}, false}, DType::kF32, random);
  // Split-k, at every width of tile.
  for (const int rank : {8, 24, 56, 104}) check({1024, {64}, {rank}, {3}, false}, type(), random);
  if (is_slow()) return;
  check({4096, {4096, 1024, 1024}, {16, 128, 64, 8}, {1, 300, 0, 77, 1, 1, 200}, true}, type(),
        random);
  check({11008, {4096}, {32, 8}, {1, 1, 1, 130}, false}, type(), random);
}

// Hopper's shrink beside the other: by instructions that the host emulates by their documented
// layouts.
TEST_P(LoraTest, WgmmaShrinkMatchesTheDefinition) {
  Random random(27);
  std::vector<Shape> shapes = {{64, {64}, {8}, {3}, false},
                               {576, {64, 128}, {16, 33, 5}, {1, 0, 17, 70}, true},
                               {1024, {64}, {128, 72}, {20, 3}, false},
                               {512, {64}, {100, 8}, {1, 2, 16}, false},
                               {88, {40, 8}, {40, 8}, {9, 2}, true}};
  for (int i = is_slow() ? 0 : 30; i > 0; --i) shapes.push_back(random_shape(random, 300));
  for (const Shape& shape : shapes) {
    const Case c(type(), DType::kF32, shape, random);
    const std::vector<Case::Rows> expected = c.expected();
    for (const LoraKind kind : {LoraKind::kSgmv, LoraKind::kEinsum}) {
      expect_definition(c, expected, kind, DType::kF32, c.run(kind, 0xff, SegmentShrink::kMma));
      const auto results = c.run(kind, 0xff, SegmentShrink::kWgmma);
      if (results.empty()) GTEST_SKIP() << "the device has no wgmma (compute capability 9.0)";
      expect_definition(c, expected, kind, DType::kF32, results);
      if (HasFatalFailure()) return;
      EXPECT_EQ(c.run(kind, 0x3c, SegmentShrink::kWgmma), results) << "other bits";
    }
  }
}

TEST_P(LoraTest, RowKindsGiveARowTheSameBitsInEveryBatch) {
  Random random(23);
  const Case c(type(), DType::kF32, {320, {192}, {5, 16, 40}, {1, 2, 1, 1}, false}, random);
  for (const LoraKind kind : {LoraKind::kBgmv, LoraKind::kMbgmv}) {
    const std::vector<char> all = c.run(kind, 0xff)[0];
    const auto bytes = static_cast<std::ptrdiff_t>(c.ldy() * 4);
    for (int row = 0; row < c.rows(); ++row) {
      const std::vector<char> alone = c.run_row(kind, row)[0];
      EXPECT_TRUE(std::equal(all.begin() + row * bytes, all.begin() + (row + 1) * bytes,
                             alone.begin() + row * bytes));
    }
  }
}

TEST_P(LoraTest, EinsumTakesItsRowsInTurns) {
  Random random(28);
  for (const DType y_type : {type(), DType::kF32}) {
    const Case c(type(), y_type, {192, {64, 24}, {8, 16, 5}, {70, 64, 1, 60}, true}, random);
    const std::vector<Case::Rows> expected = c.expected();
    for (const int rows : {64, 128}) {  // three turns, and two
      expect_definition(c, expected, LoraKind::kEinsum, y_type,
                        c.run_in_turns(LoraKind::kEinsum, rows));
    }
  }
}

TEST_P(LoraTest, AllAdaptersOverManyRowsTakeNoMoreThanTheyMay) {
  LoraBatch batch;
  batch.type = type();
  batch.rows = 8192;
  batch.width = 128;
  batch.distinct = 256;
  EXPECT_EQ(lora_workspace(LoraKind::kEinsum, batch, kMaxLoraTargets), std::size_t{128} << 20);
  batch.rows = 64;  // a turn
  const std::size_t turn = lora_workspace(LoraKind::kEinsum, batch, kMaxLoraTargets);
  EXPECT_LE(turn, std::size_t{32} << 20);
  EXPECT_GE(turn, std::size_t{64} * 128 * 256 * kMaxLoraTargets * 2);  // t alone
}

TEST_P(LoraTest, NothingToDoAndWhatItCannotDo) {
  Random random(24);
  const Case c(type(), type(), {64, {64}, {8}, {2}, false}, random);
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  const DeviceVector<char> memory(kBytes);
  std::size_t workspace_bytes = kBytes;
  LoraTarget target{c.targets()[0].pairs->get() + 1, 64, 64, memory.data()};
  const auto call = [&](const LoraBatch& batch, int count, std::int64_t ldx, std::int64_t ldy) {
    return lora(LoraKind::kSgmv, batch, &target, count, memory.data(), ldx, ldy, memory.data(),
                workspace_bytes, stream);
  };
  LoraBatch batch = c.batch();
  EXPECT_EQ(call(batch, 0, 64, 64), cudaSuccess);
  EXPECT_EQ(call(batch, kMaxLoraTargets + 1, 64, 64), cudaErrorInvalidValue);
  EXPECT_EQ(call(batch, 1, 65, 64), cudaErrorInvalidValue);
  EXPECT_EQ(call(batch, 1, 64, 63), cudaErrorInvalidValue);
  workspace_bytes = 15;
  EXPECT_EQ(call(batch, 1, 64, 64), cudaErrorInvalidValue);
  workspace_bytes = kBytes;
  target.in = 65;
  EXPECT_EQ(call(batch, 1, 72, 64), cudaErrorInvalidValue);
  target.in = 64;
  batch.width = kMaxLoraWidth + 8;
  EXPECT_EQ(call(batch, 1, 64, 64), cudaErrorInvalidValue);
  batch = c.batch();
  batch.rows = 0;
  EXPECT_EQ(call(batch, 1, 64, 64), cudaSuccess);
  batch = c.batch();
  batch.type = DType::kF32;
  EXPECT_EQ(call(batch, 1, 64, 64), cudaErrorNotSupported);
  batch = c.batch();
  batch.y_type = type() == DType::kBf16 ? DType::kF16 : DType::kBf16;
  EXPECT_EQ(call(batch, 1, 64, 64), cudaErrorNotSupported);
}

SERVELAB_FOR_BOTH_TYPES(LoraTest);

}  // namespace
}  // namespace servelab::kernels::cuda
