#include "kernels/cuda/blocks.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "tests/gpu/device.h"
#include "tests/kernels/support.h"

namespace servelab::kernels::cuda {
namespace {

constexpr int kArrays = 3;
constexpr int kBlocks = 9;

class BlocksTest : public DeviceTest, public ::testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    for (int i = 0; i < kArrays; ++i) {
      std::vector<std::int32_t> values(static_cast<std::size_t>(kBlocks * bytes() / 4));
      for (std::int32_t& x : values) x = random_.whole(0, 1 << 30);
      arrays_.push_back(std::make_unique<DeviceVector<std::int32_t>>(values));
      before_.push_back(values);
    }
    std::vector<void*> pointers;
    for (const auto& array : arrays_) pointers.push_back(array->data());
    pointers_ = std::make_unique<DeviceVector<void*>>(pointers);
    pool_ = {pointers_->get(), kArrays, bytes()};
  }
  int bytes() const { return GetParam(); }
  std::vector<std::int32_t> some_blocks(std::size_t count) {
    std::vector<std::int32_t> all(kBlocks);
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random_.engine());
    all.resize(count);
    return all;
  }
  // Copies one block between vectors of int32 that hold blocks.
  void copy(const std::vector<std::int32_t>& from, std::size_t source,
            std::vector<std::int32_t>& to, std::size_t target) const {
    const auto words = static_cast<std::size_t>(bytes() / 4);
    std::copy_n(&from[source * words], words, &to[target * words]);
  }
  void expect_arrays(const std::vector<std::vector<std::int32_t>>& expected) {
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      EXPECT_EQ(arrays_[i]->values(), expected[i]);
      EXPECT_TRUE(arrays_[i]->intact());
    }
  }

  Random random_{5};
  std::vector<std::unique_ptr<DeviceVector<std::int32_t>>> arrays_;
  std::vector<std::vector<std::int32_t>> before_;
  std::unique_ptr<DeviceVector<void*>> pointers_;
  BlockPool pool_;
};

TEST_P(BlocksTest, CopiesWithinThePool) {
  const std::vector<std::int32_t> chosen = some_blocks(6);
  const DeviceVector<std::int32_t> from(
      std::vector<std::int32_t>(chosen.begin(), chosen.begin() + 3));
  const DeviceVector<std::int32_t> to(std::vector<std::int32_t>(chosen.begin() + 3, chosen.end()));
  ASSERT_EQ(copy_blocks(pool_, from.get(), to.get(), 3, stream), cudaSuccess);
  auto expected = before_;
  for (auto& array : expected) {
    for (std::size_t i = 0; i < 3; ++i) {
      copy(array, static_cast<std::size_t>(chosen[i]), array,
           static_cast<std::size_t>(chosen[i + 3]));
    }
  }
  expect_arrays(expected);
}

TEST_P(BlocksTest, GathersAndScattersBack) {
  const std::vector<std::int32_t> chosen = some_blocks(4);
  const DeviceVector<std::int32_t> blocks_of(chosen);
  const DeviceVector<std::int32_t> packed(static_cast<std::size_t>(kArrays * 4 * bytes() / 4));
  ASSERT_EQ(gather_blocks(pool_, blocks_of.get(), 4, packed.data(), stream), cudaSuccess);
  std::vector<std::int32_t> expected_packed(packed.values().size());
  for (std::size_t array = 0; array < kArrays; ++array) {
    for (std::size_t i = 0; i < 4; ++i) {
      copy(before_[array], static_cast<std::size_t>(chosen[i]), expected_packed, array * 4 + i);
    }
  }
  EXPECT_EQ(packed.values(), expected_packed);
  EXPECT_TRUE(packed.intact());
  expect_arrays(before_);

  const std::vector<std::int32_t> others = some_blocks(4);
  const DeviceVector<std::int32_t> to(others);
  ASSERT_EQ(scatter_blocks(pool_, to.get(), 4, packed.data(), stream), cudaSuccess);
  auto expected = before_;
  for (std::size_t array = 0; array < kArrays; ++array) {
    for (std::size_t i = 0; i < 4; ++i) {
      copy(before_[array], static_cast<std::size_t>(chosen[i]), expected[array],
           static_cast<std::size_t>(others[i]));
    }
  }
  expect_arrays(expected);
}

TEST_P(BlocksTest, RefusesBlocksThatAreNotWholeVectors) {
  const BlockPool odd{pool_.arrays, pool_.count, 24};
  EXPECT_EQ(copy_blocks(odd, nullptr, nullptr, 1, stream), cudaErrorInvalidValue);
  EXPECT_EQ(copy_blocks(pool_, nullptr, nullptr, 0, stream), cudaSuccess);
}

INSTANTIATE_TEST_SUITE_P(Bytes, BlocksTest, ::testing::Values(16, 48, 4096, 16400 + 32 * 1024));

}  // namespace
}  // namespace servelab::kernels::cuda
