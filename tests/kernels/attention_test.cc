#include <algorithm>
#include <numeric>

#include "tests/kernels/support.h"

namespace servelab::kernels {
namespace {

struct Shape {
  int kv_heads = 1;
  int group = 1;
  int head_dim = 64;
  int block_tokens = 16;
  int positions = 100;  // keys of the sequence in the end
};

// A sequence in a cache of shuffled blocks; all other slots hold NaN.
class Sequence {
 public:
  Sequence(const Ops& ops, DType type, const Shape& shape, Random& random)
      : shape_(shape),
        blocks_(static_cast<std::size_t>(shape.positions / shape.block_tokens + 3)),
        keys_(cache_bytes(type)),
        values_(cache_bytes(type)),
        q_(random.reals(elements(shape.group), 3)) {
    std::iota(blocks_.begin(), blocks_.end(), 0);
    std::shuffle(blocks_.begin(), blocks_.end(), random.engine());
    cache_ = {type,           keys_.data(),   values_.data(),
              shape.kv_heads, shape.head_dim, shape.block_tokens};
    const std::vector<float> k = random.reals(elements(1));
    const std::vector<float> v = random.reals(elements(1));
    const int width = shape.kv_heads * shape.head_dim;
    const int first = shape.kv_heads / 2;  // written in two shares, as by two threads
    ops.kv_write(cache_, task(0, shape.positions), k.data(), width, v.data(), width, 0, first);
    ops.kv_write(cache_, task(0, shape.positions), k.data(), width, v.data(), width, first,
                 shape.kv_heads);
  }

  AttentionTask task(int context, int tokens) const { return {context, tokens, blocks_.data()}; }
  const KvCache& cache() const { return cache_; }
  int width() const { return shape_.kv_heads * shape_.group * shape_.head_dim; }
  bool intact() const { return keys_.intact() && values_.intact(); }

  // Outputs of positions [context, context + tokens), in `chunk` queries per call.
  std::vector<float> run(const Ops& ops, int context, int tokens, int chunk) {
    const DType type = cache_.type;
    const std::int64_t ld = width() + 5;
    const std::int64_t ldq = width();
    Guarded out(static_cast<std::size_t>(tokens * ld) * bytes_of(type));
    Guarded scratch(attention_scratch(cache_, shape_.group));
    const AttentionTask all = task(context, tokens);
    for (int head = 0; head < shape_.kv_heads; ++head) {
      for (int begin = 0; begin < tokens; begin += chunk) {
        ops.attention(cache_, all, head, shape_.group, q_.data() + context * ldq, ldq, out.data(),
                      ld, begin, std::min(tokens, begin + chunk), scratch.data());
      }
    }
    EXPECT_TRUE(out.intact());
    EXPECT_TRUE(scratch.intact());
    std::vector<float> result;
    for (int i = 0; i < tokens; ++i) {
      for (int j = 0; j < width(); ++j) result.push_back(ref::load(type, out.data(), i * ld + j));
    }
    return result;
  }

  // Sets everything of a position and after to `value`.
  void overwrite(int position, float value) {
    for (int p = position; p < shape_.positions; ++p) {
      const std::int64_t block = blocks_[static_cast<std::size_t>(p / shape_.block_tokens)];
      for (int head = 0; head < shape_.kv_heads; ++head) {
        const std::int64_t slot =
            (block * shape_.kv_heads + head) * shape_.block_tokens + p % shape_.block_tokens;
        for (std::int64_t i = slot * shape_.head_dim; i < (slot + 1) * shape_.head_dim; ++i) {
          ref::store(cache_.type, cache_.keys, i, value);
          ref::store(cache_.type, cache_.values, i, value);
        }
      }
    }
  }

 private:
  std::size_t elements(int group) const {
    return static_cast<std::size_t>(shape_.positions * shape_.kv_heads * group * shape_.head_dim);
  }
  std::size_t cache_bytes(DType type) const {
    return blocks_.size() *
           static_cast<std::size_t>(shape_.block_tokens * shape_.kv_heads * shape_.head_dim) *
           bytes_of(type);
  }

  Shape shape_;
  std::vector<std::int32_t> blocks_;
  Guarded keys_;
  Guarded values_;
  KvCache cache_;
  std::vector<float> q_;
};

class AttentionTest : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(All, AttentionTest, every_isa_and_type(), parameter_name);

TEST_P(AttentionTest, MatchesTheReference) {
  Random random(9);
  // bf16: weights and outputs are rounded to 8 bits; f32: the exponentials' few ulp.
  const float tolerance = type() == DType::kBf16 ? 0.01f : 3e-6f;
  for (const int head_dim : {16, 32, 48, 64, 128}) {
    for (const int block_tokens : {1, 3, 16}) {
      Shape shape{random.whole(1, 3), random.whole(1, 4), head_dim, block_tokens,
                  random.whole(1, 200)};
      SCOPED_TRACE(::testing::Message()
                   << "d " << head_dim << " block " << block_tokens << " group " << shape.group
                   << " positions " << shape.positions);
      Sequence sequence(ops(), type(), shape, random);
      const int context = random.whole(0, shape.positions - 1);
      const int tokens = shape.positions - context;
      const std::vector<float> got = sequence.run(ops(), context, tokens, tokens);
      const std::vector<float> expected =
          sequence.run(kernels::ops(Isa::kReference), context, tokens, tokens);
      for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], tolerance);
      EXPECT_TRUE(sequence.intact());
    }
  }
}

// A prefill in one piece, in chunks of any size, and token by token: the same bits.
TEST_P(AttentionTest, ChunksAndDecodesAgreeBitForBit) {
  Random random(10);
  for (const int block_tokens : {1, 3, 16}) {
    for (const int group : {1, 3}) {
      const Shape shape{2, group, 64, block_tokens, 170};
      Sequence sequence(ops(), type(), shape, random);
      const std::vector<float> whole = sequence.run(ops(), 0, 170, 170);
      for (const int chunk : {1, 7, 64, 100}) {
        EXPECT_EQ(whole, sequence.run(ops(), 0, 170, chunk)) << "chunk " << chunk;
      }
      for (int position = 0; position < 170; position += 11) {  // as its own task
        const std::vector<float> one = sequence.run(ops(), position, 1, 1);
        const auto from = whole.begin() + position * sequence.width();
        ASSERT_TRUE(std::equal(one.begin(), one.end(), from)) << position;
      }
    }
  }
}

// Decoding at a position when all later slots are NaN, as they are before they are written: and a
// prefill whose later keys are NaN.
TEST_P(AttentionTest, LaterKeysNeverReachAResult) {
  Random random(11);
  const Shape shape{1, 2, 64, 16, 150};
  Sequence sequence(ops(), type(), shape, random);
  const std::vector<float> whole = sequence.run(ops(), 0, 150, 150);
  for (const int position : {149, 128, 127, 100, 64, 63, 1}) {
    sequence.overwrite(position, std::numeric_limits<float>::quiet_NaN());
    const std::vector<float> decode = sequence.run(ops(), position - 1, 1, 1);
    const std::vector<float> prefill = sequence.run(ops(), 0, 150, 150);
    const int end = position * sequence.width();
    ASSERT_TRUE(std::equal(decode.begin(), decode.end(), whole.begin() + end - sequence.width()));
    ASSERT_TRUE(std::equal(prefill.begin(), prefill.begin() + end, whole.begin())) << position;
    ASSERT_TRUE(std::isnan(prefill[static_cast<std::size_t>(end)]));
  }
}

// Scores far apart, where exponentials vanish, and of any sign.
TEST_P(AttentionTest, LargeScoresStayFinite) {
  Random random(12);
  const Shape shape{1, 1, 64, 16, 130};
  Sequence sequence(ops(), type(), shape, random);
  sequence.overwrite(70, 60.0f);
  for (const float x : sequence.run(ops(), 0, 130, 130)) ASSERT_TRUE(std::isfinite(x));
}

}  // namespace
}  // namespace servelab::kernels
