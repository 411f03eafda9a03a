#include <cmath>
#include <numeric>

#include "kernels/cuda/elementwise.h"
#include "tests/gpu/device.h"
#include "tests/kernels/support.h"

namespace servelab::kernels::cuda {
namespace {

struct Shape {
  int heads;
  int kv_heads;
  int head_dim;
  int block_tokens;
  bool bias;
};

constexpr int kRows = 6;
constexpr int kBlocks = 5;
constexpr int kPositions = 40;

// Inputs of one call, and what must come out.
struct Case {
  Case(const Shape& shape, DType type, Random& random)
      : shape(shape),
        type(type),
        width((shape.heads + 2 * shape.kv_heads) * shape.head_dim),
        ld(width + 16),
        qkv(random.reals(static_cast<std::size_t>(kRows * ld), 2)),
        bias(random.reals(static_cast<std::size_t>(width))) {
    for (int i = 0; i < kPositions * shape.head_dim / 2; ++i) {
      cos.push_back(std::cos(static_cast<float>(i)));
      sin.push_back(std::sin(static_cast<float>(i)));
    }
    std::vector<std::int32_t> slots(static_cast<std::size_t>(kBlocks * shape.block_tokens));
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), random.engine());
    for (int row = 0; row < kRows; ++row) {
      positions.push_back(row == 4 ? -1 : random.whole(0, kPositions - 1));
      cache_rows.push_back(row == 1 || row == 4 ? -1 : slots[static_cast<std::size_t>(row)]);
    }
  }

  std::size_t cache_size() const {
    return static_cast<std::size_t>(kBlocks * shape.block_tokens * shape.kv_heads * shape.head_dim);
  }

  // Row `row` of qkv after bias and rotation, in f32; qkv has been rounded before.
  std::vector<float> expected_row(int row) const {
    const float* from = qkv.data() + row * ld;
    std::vector<float> x(from, from + width);
    const auto at = static_cast<std::size_t>(row);
    if (positions[at] < 0) return x;
    for (std::size_t i = 0; shape.bias && i < x.size(); ++i) x[i] += bias[i];
    ref::rope(x.data(), width, &positions[at], cos.data(), sin.data(), shape.heads + shape.kv_heads,
              shape.head_dim, 1);
    return x;
  }

  Shape shape;
  DType type;
  int width;
  std::int64_t ld;
  std::vector<float> qkv;
  std::vector<float> bias;
  std::vector<float> cos;
  std::vector<float> sin;
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> cache_rows;
};

// Compares a cache array with the rows' columns from `column` on; all else must still be NaN.
void check_cache(const Case& c, const std::vector<float>& got, int column) {
  std::vector<float> expected(got.size(), std::numeric_limits<float>::quiet_NaN());
  for (int row = 0; row < kRows; ++row) {
    const int slot = c.cache_rows[static_cast<std::size_t>(row)];
    if (slot < 0) continue;
    const std::vector<float> x = c.expected_row(row);
    for (int i = 0; i < c.shape.kv_heads * c.shape.head_dim; ++i) {
      const int head = i / c.shape.head_dim;
      const int tokens = c.shape.block_tokens;
      const int line = (slot / tokens * c.shape.kv_heads + head) * tokens + slot % tokens;
      expected[static_cast<std::size_t>(line * c.shape.head_dim + i % c.shape.head_dim)] =
          x[static_cast<std::size_t>(column + i)];
    }
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::isnan(got[i]), std::isnan(expected[i])) << i;
    if (std::isnan(got[i])) continue;
    ASSERT_TRUE(close(got[i], expected[i], c.type)) << i;
  }
}

class RopeTest : public DeviceTypeTest {};

TEST_P(RopeTest, RotatesAndWritesTheCache) {
  Random random(4);
  for (const Shape& shape : {Shape{4, 2, 64, 16, true}, Shape{3, 3, 16, 4, false},
                             Shape{7, 1, 128, 8, true}, Shape{2, 1, 96, 3, false}}) {
    Case c(shape, type(), random);
    const DeviceTensor qkv(type(), c.qkv);
    const DeviceTensor keys(type(), c.cache_size());
    const DeviceTensor values(type(), c.cache_size());
    const DeviceVector<float> bias(c.bias);
    const DeviceVector<float> cos(c.cos);
    const DeviceVector<float> sin(c.sin);
    const DeviceVector<std::int32_t> positions(c.positions);
    const DeviceVector<std::int32_t> cache_rows(c.cache_rows);
    const KvCache cache{type(),         keys.data(),    values.data(),
                        shape.kv_heads, shape.head_dim, shape.block_tokens};
    ASSERT_EQ(
        rope_and_write_kv(cache, qkv.data(), c.ld, shape.heads, shape.bias ? bias.get() : nullptr,
                          positions.get(), cos.get(), sin.get(), cache_rows.get(), kRows, stream),
        cudaSuccess);
    const std::vector<float> got = qkv.values();
    for (int row = 0; row < kRows; ++row) {
      const std::vector<float> x = c.expected_row(row);
      for (std::int64_t i = 0; i < c.ld; ++i) {
        const auto at = static_cast<std::size_t>(row * c.ld + i);
        const float expected = i < c.width ? x[static_cast<std::size_t>(i)] : c.qkv[at];
        ASSERT_TRUE(close(got[at], expected, type())) << row << " " << i;
      }
    }
    check_cache(c, keys.values(), shape.heads * shape.head_dim);
    check_cache(c, values.values(), (shape.heads + shape.kv_heads) * shape.head_dim);
    EXPECT_TRUE(qkv.intact() && keys.intact() && values.intact());
  }
}

TEST_P(RopeTest, RefusesHeadsThatAreNotWholeVectors) {
  const KvCache cache{type(), nullptr, nullptr, 1, 24, 16};
  EXPECT_EQ(rope_and_write_kv(cache, nullptr, 96, 1, nullptr, nullptr, nullptr, nullptr, nullptr, 1,
                              stream),
            cudaErrorNotSupported);
}

SERVELAB_FOR_BOTH_TYPES(RopeTest);

}  // namespace
}  // namespace servelab::kernels::cuda
