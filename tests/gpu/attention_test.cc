#include "kernels/cuda/attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/gpu/device.h"
#include "tests/kernels/support.h"

namespace servelab::kernels::cuda {
namespace {

struct Shape {
  int kv_heads;
  int group;
  int head_dim;
  int block_tokens;
};

// {positions before the step, rows of the step}; a context of -1 is padding.
struct Sequence {
  int context;
  int rows;
};

// Sequences in one cache of shuffled blocks. All slots that hold no key are NaN.
class Batch {
 public:
  Batch(const Shape& shape, DType type, const std::vector<Sequence>& sequences, Random& random)
      : shape_(shape), type_(type), sequences_(sequences) {
    place(random);
    const auto elements =
        static_cast<std::size_t>(blocks_ * shape.kv_heads * shape.block_tokens * shape.head_dim);
    keys_.assign(elements, std::numeric_limits<float>::quiet_NaN());
    values_ = keys_;
    for (std::size_t s = 0; s < sequences.size(); ++s) write_sequence(s, random);
    q_ = random.reals(static_cast<std::size_t>(rows() * ld()), 3);
  }

  int rows() const { return query_begin_.back(); }
  int heads() const { return shape_.kv_heads * shape_.group; }
  std::int64_t width() const { return std::int64_t{heads()} * shape_.head_dim; }
  std::int64_t ld() const { return width() + 8; }

  // What the kernels return; `splits` 0: prefill_attention.
  std::vector<float> run(int splits) {
    const DeviceTensor keys(type_, keys_);
    const DeviceTensor values(type_, values_);
    const DeviceTensor q(type_, q_);
    const DeviceTensor out(type_, static_cast<std::size_t>(rows() * ld()));
    const DeviceVector<std::int32_t> query_begin(query_begin_);
    const DeviceVector<std::int32_t> contexts(contexts_);
    const DeviceVector<std::int32_t> tables(tables_);
    const KvCache cache{type_,           keys.data(),     values.data(),
                        shape_.kv_heads, shape_.head_dim, shape_.block_tokens};
    const AttentionBatch batch{static_cast<int>(sequences_.size()),
                               query_begin.get(),
                               contexts.get(),
                               tables.get(),
                               table_stride_,
                               max_rows_,
                               max_length_};
    const std::size_t bytes =
        splits == 0 ? 0 : decode_workspace(batch.sequences, heads(), shape_.head_dim, splits);
    const DeviceMemory workspace(bytes);
    const cudaError_t error =
        splits == 0
            ? prefill_attention(cache, batch, heads(), q.data(), ld(), out.data(), ld(), nullptr)
            : decode_attention(cache, batch, heads(), q.data(), ld(), out.data(), ld(), splits,
                               workspace.data(), nullptr);
    EXPECT_EQ(error, cudaSuccess);
    EXPECT_TRUE(out.intact() && workspace.intact() && keys.intact() && values.intact());
    return out.values();
  }

  // Compares with the reference; gaps between rows must be untouched, rows of padding zero.
  void check(const std::vector<float>& got, float tolerance) const {
    for (std::size_t s = 0; s < sequences_.size(); ++s) {
      std::vector<float> expected = expected_rows(s);
      for (int row = 0; row < sequences_[s].rows; ++row) {
        for (std::int64_t i = 0; i < ld(); ++i) {
          const float x = got[static_cast<std::size_t>((query_begin_[s] + row) * ld() + i)];
          if (i >= width()) {
            ASSERT_TRUE(std::isnan(x)) << "a gap was written";
            continue;
          }
          ASSERT_TRUE(
              close(x, expected[static_cast<std::size_t>(row * width() + i)], type_, 1, tolerance))
              << "sequence " << s << " row " << row << " element " << i;
        }
      }
    }
  }

 private:
  // Blocks and row numbers of all sequences.
  void place(Random& random) {
    query_begin_.push_back(0);
    std::vector<int> counts;
    for (const Sequence& sequence : sequences_) {
      contexts_.push_back(sequence.context);
      query_begin_.push_back(query_begin_.back() + sequence.rows);
      const int length = sequence.context < 0 ? 0 : sequence.context + sequence.rows;
      counts.push_back((length + shape_.block_tokens - 1) / shape_.block_tokens);
      max_rows_ = std::max(max_rows_, sequence.rows);
      max_length_ = std::max(max_length_, length);
    }
    table_stride_ = *std::max_element(counts.begin(), counts.end()) + 2;
    blocks_ = std::accumulate(counts.begin(), counts.end(), 3);
    std::vector<std::int32_t> free(static_cast<std::size_t>(blocks_));
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), random.engine());
    for (const int count : counts) {
      for (int i = 0; i < table_stride_; ++i) {
        tables_.push_back(i < count ? free.back() : 1 << 30);  // past the end: nowhere
        if (i < count) free.pop_back();
      }
    }
  }

  const std::int32_t* table(std::size_t s) const {
    return tables_.data() + s * static_cast<std::size_t>(table_stride_);
  }

  void write_sequence(std::size_t s, Random& random) {
    const Sequence& sequence = sequences_[s];
    for (int p = 0; p < sequence.context + sequence.rows && sequence.context >= 0; ++p) {
      const std::int64_t block = table(s)[p / shape_.block_tokens];
      for (int head = 0; head < shape_.kv_heads; ++head) {
        const std::int64_t line =
            (block * shape_.kv_heads + head) * shape_.block_tokens + p % shape_.block_tokens;
        for (int i = 0; i < shape_.head_dim; ++i) {
          const auto at = static_cast<std::size_t>(line * shape_.head_dim + i);
          keys_[at] = random.real();
          values_[at] = random.real();
        }
      }
    }
  }

  // [rows, width] in f32, from the inputs as run() has rounded them.
  std::vector<float> expected_rows(std::size_t s) const {
    const Sequence& sequence = sequences_[s];
    std::vector<float> result(static_cast<std::size_t>(sequence.rows * width()));
    if (sequence.context < 0) return result;
    std::vector<float> keys = keys_;
    std::vector<float> values = values_;
    const KvCache cache{DType::kF32,     keys.data(),     values.data(),
                        shape_.kv_heads, shape_.head_dim, shape_.block_tokens};
    const AttentionTask task{sequence.context, sequence.rows, table(s)};
    for (int head = 0; head < shape_.kv_heads; ++head) {
      ref::attention(cache, task, head, shape_.group, q_.data() + query_begin_[s] * ld(), ld(),
                     result.data(), width(), 0, sequence.rows, nullptr);
    }
    return result;
  }

  Shape shape_;
  DType type_;
  std::vector<Sequence> sequences_;
  std::vector<std::int32_t> query_begin_;
  std::vector<std::int32_t> contexts_;
  std::vector<std::int32_t> tables_;
  std::vector<float> keys_;
  std::vector<float> values_;
  std::vector<float> q_;
  int table_stride_ = 0;
  int blocks_ = 0;
  int max_rows_ = 0;
  int max_length_ = 0;
};

class AttentionTest : public DeviceTypeTest {
 protected:
  // Decode weights values in f32; prefill rounds the weights.
  static constexpr float kDecodeTolerance = 2e-5f;
  float prefill_tolerance() const { return rounding(type()); }
};

TEST_P(AttentionTest, DecodeOfAnyGroupAndHeadSize) {
  Random random(8);
  const std::vector<Sequence> sequences = {{0, 1}, {37, 1}, {-1, 1}, {131, 1}};
  for (const int head_dim : {16, 32, 64, 80, 128, 160, 256}) {
    for (const int group : {1, 2, 3, 7, 12}) {
      if (head_dim % 64 != 0 && group != 3) continue;
      Batch batch({2, group, head_dim, 16}, type(), sequences, random);
      for (const int splits : {1, 3}) batch.check(batch.run(splits), kDecodeTolerance);
    }
  }
}

TEST_P(AttentionTest, DecodeOfAnySplitAndBlock) {
  Random random(9);
  for (const int block_tokens : {1, 5, 16, 64}) {
    const std::vector<Sequence> sequences = {
        {random.whole(0, 400), 1}, {random.whole(0, 64), 1}, {300, 1}, {63, 1}, {64, 1}};
    Batch batch({1, 2, 64, block_tokens}, type(), sequences, random);
    for (const int splits : {1, 2, 5, 9}) batch.check(batch.run(splits), kDecodeTolerance);
  }
}

TEST_P(AttentionTest, PrefillOfAnyGroupAndHeadSize) {
  Random random(10);
  for (const int head_dim : {16, 32, 64, 80, 128, 256}) {
    const int group = head_dim % 64 == 0 ? 2 : 1;
    Batch batch({2, group, head_dim, 16}, type(), {{0, 9}, {21, 33}, {-1, 2}, {5, 0}, {70, 1}},
                random);
    batch.check(batch.run(0), prefill_tolerance());
  }
}

TEST_P(AttentionTest, PrefillOverSeveralTiles) {
  Random random(11);
  for (const int block_tokens : {3, 16}) {
    const int rows = random.whole(129, 200);
    Batch wide({1, 1, 128, block_tokens}, type(), {{0, 130}, {45, 66}}, random);
    wide.check(wide.run(0), prefill_tolerance());
    Batch narrow({1, 1, 64, block_tokens}, type(), {{random.whole(0, 99), rows}, {64, 64}}, random);
    narrow.check(narrow.run(0), prefill_tolerance());
  }
}

TEST_P(AttentionTest, PrefillOfOneQueryIsDecode) {
  Random random(12);
  Batch batch({2, 4, 128, 16}, type(), {{0, 1}, {99, 1}, {31, 1}, {-1, 1}}, random);
  batch.check(batch.run(0), prefill_tolerance());
  batch.check(batch.run(2), kDecodeTolerance);
}

TEST_P(AttentionTest, RefusesWhatDoesNotFit) {
  AttentionBatch batch;
  const KvCache odd{type(), nullptr, nullptr, 1, 60, 16};
  EXPECT_EQ(prefill_attention(odd, batch, 1, nullptr, 64, nullptr, 64, stream),
            cudaErrorNotSupported);
  const KvCache wide{type(), nullptr, nullptr, 1, 264, 16};
  EXPECT_EQ(decode_attention(wide, batch, 1, nullptr, 264, nullptr, 264, 1, nullptr, stream),
            cudaErrorNotSupported);
  const KvCache fine{type(), nullptr, nullptr, 2, 64, 16};
  EXPECT_EQ(decode_attention(fine, batch, 3, nullptr, 192, nullptr, 192, 1, nullptr, stream),
            cudaErrorNotSupported);
  EXPECT_EQ(decode_attention(fine, batch, 2, nullptr, 128, nullptr, 128, 2, nullptr, stream),
            cudaErrorInvalidValue);
  const KvCache f32{DType::kF32, nullptr, nullptr, 1, 64, 16};
  EXPECT_EQ(prefill_attention(f32, batch, 1, nullptr, 64, nullptr, 64, stream),
            cudaErrorNotSupported);
}

SERVELAB_FOR_BOTH_TYPES(AttentionTest);

TEST(DecodeSplits, FillTheDeviceWithoutTinyParts) {
  EXPECT_EQ(decode_splits(1, 1, 100, 132), 1);       // too short to be cut
  EXPECT_EQ(decode_splits(64, 32, 4096, 132), 1);    // enough blocks as it is
  EXPECT_EQ(decode_splits(1, 32, 4096, 132), 17);    // 4 * 132 / 32, rounded up
  EXPECT_EQ(decode_splits(1, 1, 1 << 20, 132), 64);  // at most
  EXPECT_EQ(decode_splits(1, 32, 1024, 132), 8);     // at least 128 keys each
  EXPECT_EQ(decode_workspace(4, 8, 128, 1), 0u);
  EXPECT_EQ(decode_workspace(4, 8, 128, 3), 4u * 8 * 3 * 130 * 4);
}

}  // namespace
}  // namespace servelab::kernels::cuda
