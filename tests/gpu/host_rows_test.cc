#include "kernels/cuda/host_rows.h"

#include <atomic>
#include <chrono>
#include <memory>

#include "tests/gpu/device.h"
#include "tests/kernels/support.h"

namespace servelab::kernels::cuda {
namespace {

constexpr std::uint16_t kUntouched = 0xffff;  // NaN in both types

// Pinned memory of 16-bit elements between guards, one signal behind them.
class Pinned {
 public:
  explicit Pinned(std::size_t count) : count_(count) {
    void* memory = nullptr;
    if (cudaMallocHost(&memory, (count + 2 * kGuard) * 2 + 16) != cudaSuccess) {
      throw std::runtime_error("no pinned memory");
    }
    all_ = static_cast<std::uint16_t*>(memory);
    std::fill_n(all_, count + 2 * kGuard, kUntouched);
    *signal() = 0;
  }
  ~Pinned() { static_cast<void>(cudaFreeHost(all_)); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  std::uint16_t* data() const { return all_ + kGuard; }
  std::uint32_t* signal() const {
    const std::size_t words = (count_ + 2 * kGuard + 1) / 2;
    return reinterpret_cast<std::uint32_t*>(all_) + words;
  }
  // Without waiting for the device: false when it does not come within ten seconds.
  bool comes(std::uint32_t number) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (std::atomic_ref(*signal()).load(std::memory_order_acquire) != number) {
      if (std::chrono::steady_clock::now() > end) return false;
    }
    return true;
  }
  bool intact() const {
    const auto untouched = [](std::uint16_t x) { return x == kUntouched; };
    return std::all_of(all_, all_ + kGuard, untouched) &&
           std::all_of(data() + count_, data() + count_ + kGuard, untouched);
  }

 private:
  static constexpr std::size_t kGuard = 64;
  std::size_t count_;
  std::uint16_t* all_ = nullptr;
};

struct Case {
  RowStretches rows;
  int matrix_rows;
  int columns;
  int ld;
};

// Decodes alone, prefills alone, both, neither; one vector, rows that leave the last blocks
// incomplete, and more than all blocks take at once.
const Case kCases[] = {
    {{{0, 0}, {1, 0}}, 1, 8, 8},          {{{2, 0}, {3, 0}}, 6, 64, 72},
    {{{0, 4}, {0, 3}}, 7, 136, 136},      {{{1, 7}, {5, 9}}, 17, 4096, 4104},
    {{{3, 0}, {0, 0}}, 4, 64, 64},        {{{0, 40}, {30, 100}}, 140, 4096, 4096},
    {{{5, 9}, {2, 1}}, 10, 11008, 11008},
};

int matrix_row(const RowStretches& rows, int packed) {
  return packed < rows.count[0] ? rows.begin[0] + packed : rows.begin[1] + packed - rows.count[0];
}

class SendRowsTest : public DeviceTest {};

// What the host reads as soon as it sees the signal, before it waits for the device in any way.
TEST_F(SendRowsTest, AllRowsAreThereWhenTheSignalIs) {
  Random random(3);
  const DeviceVector<std::int32_t> arrived(std::vector<std::int32_t>{0});
  std::uint32_t number = 0xfffffffd;  // wraps around
  for (const Case& c : kCases) {
    std::vector<std::uint16_t> x(static_cast<std::size_t>(c.matrix_rows * c.ld));
    for (std::uint16_t& value : x) value = static_cast<std::uint16_t>(random.whole(0, 0x7000));
    const DeviceVector<std::uint16_t> device_x(x);
    const Pinned host(static_cast<std::size_t>(c.rows.rows() * c.columns));
    ++number;
    ASSERT_EQ(send_rows(device_x.get(), c.ld, c.rows, c.columns, host.data(), host.signal(), number,
                        arrived.get(), stream),
              cudaSuccess);
    ASSERT_TRUE(host.comes(number)) << "columns " << c.columns;
    for (int i = 0; i < c.rows.rows(); ++i) {
      for (int j = 0; j < c.columns; ++j) {
        const auto from = static_cast<std::size_t>(matrix_row(c.rows, i) * c.ld + j);
        ASSERT_EQ(host.data()[i * c.columns + j], x[from]) << "row " << i << " column " << j;
      }
    }
    EXPECT_TRUE(host.intact());
    EXPECT_EQ(arrived.values().front(), 0);
    EXPECT_EQ(device_x.values(), x);
  }
  EXPECT_TRUE(arrived.intact());
}

TEST_F(SendRowsTest, RefusesWhatItCannotDo) {
  const Pinned host(16);
  const auto send = [&](int columns, int ld, int rows) {
    return send_rows(host.data(), ld, {{0, 0}, {rows, 0}}, columns, host.data(), host.signal(), 1,
                     nullptr, stream);
  };
  EXPECT_EQ(send(12, 16, 1), cudaErrorInvalidValue);
  EXPECT_EQ(send(8, 12, 1), cudaErrorInvalidValue);
  EXPECT_EQ(send(1 << 20, 1 << 20, 4096), cudaErrorInvalidValue);
  EXPECT_EQ(*host.signal(), 0u);
}

class AddRowsTest : public DeviceTypeTest {};

// Once rounded sums of two values are exact to compare; rows that are not named keep every bit.
TEST_P(AddRowsTest, AddsEachRowToItsOwnAndNoOther) {
  Random random(4);
  for (const DType y_type : {type(), DType::kF32}) {
    for (const Case& c : kCases) {
      auto y = random.reals(static_cast<std::size_t>(c.matrix_rows * c.ld), 4);
      const DeviceTensor device_y(y_type, y);
      const Pinned host(static_cast<std::size_t>(c.rows.rows() * c.columns));
      for (int i = 0; i < c.rows.rows(); ++i) {
        for (int j = 0; j < c.columns; ++j) {
          const int packed = i * c.columns + j;
          ref::store(type(), host.data(), packed, random.real(2));
          float& to = y[static_cast<std::size_t>(matrix_row(c.rows, i) * c.ld + j)];
          float sum = to + ref::load(type(), host.data(), packed);
          ref::store(y_type, &sum, 0, sum);
          to = ref::load(y_type, &sum, 0);
        }
      }
      ASSERT_EQ(
          add_rows(type(), host.data(), c.rows, c.columns, y_type, device_y.data(), c.ld, stream),
          cudaSuccess);
      ASSERT_EQ(device_y.values(), y) << "columns " << c.columns;
      EXPECT_TRUE(device_y.intact());
      EXPECT_TRUE(host.intact());
    }
  }
}

TEST_P(AddRowsTest, RefusesWhatItCannotDo) {
  const DeviceVector<float> y(std::size_t{16});
  const RowStretches one{{0, 0}, {1, 0}};
  const DType other = type() == DType::kBf16 ? DType::kF16 : DType::kBf16;
  EXPECT_EQ(add_rows(type(), y.get(), one, 12, type(), y.get(), 16, stream), cudaErrorInvalidValue);
  EXPECT_EQ(add_rows(type(), y.get(), one, 8, type(), y.get(), 12, stream), cudaErrorInvalidValue);
  EXPECT_EQ(add_rows(type(), y.get(), one, 8, other, y.get(), 8, stream), cudaErrorNotSupported);
  EXPECT_EQ(add_rows(DType::kF32, y.get(), one, 8, DType::kF32, y.get(), 8, stream),
            cudaErrorNotSupported);
  EXPECT_EQ(add_rows(type(), y.get(), {}, 8, type(), y.get(), 8, stream), cudaSuccess);
}

SERVELAB_FOR_BOTH_TYPES(AddRowsTest);

}  // namespace
}  // namespace servelab::kernels::cuda
