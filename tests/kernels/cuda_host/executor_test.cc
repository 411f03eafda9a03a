// The host's execution of kernels: that it computes what a device would, and that it notices what a
// device would leave undefined.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "tests/kernels/support.h"

namespace servelab::kernels::cuda {
namespace {

__global__ void reverse_kernel(int* values, bool with_barrier) {
  auto* const shared = reinterpret_cast<int*>(shared_memory());
  const int i = static_cast<int>(threadIdx.x);
  shared[i] = values[i];
  if (with_barrier) block_barrier();
  values[i] = shared[static_cast<int>(blockDim.x) - 1 - i];
}

TEST(HostExecution, ABarrierOrdersSharedMemoryAndItsAbsenceShows) {
  for (const bool with_barrier : {true, false}) {
    std::vector<int> values(256);
    for (int i = 0; i < 256; ++i) values[static_cast<std::size_t>(i)] = i;
    ASSERT_EQ(launch(reverse_kernel, 1, 256, 1024, nullptr, values.data(), with_barrier),
              cudaSuccess);
    int right = 0;
    for (int i = 0; i < 256; ++i) right += values[static_cast<std::size_t>(i)] == 255 - i ? 1 : 0;
    EXPECT_EQ(right == 256, with_barrier);
  }
}

// What `kernel` of one integer is stopped for.
template <class Kernel>
std::string failure_of(Kernel kernel, int argument, unsigned threads = 64) {
  ::testing::internal::CaptureStderr();
  const cudaError_t error = launch(kernel, 2, threads, 64, nullptr, argument);
  const std::string printed = ::testing::internal::GetCapturedStderr();
  if (error == cudaSuccess) return "";
  EXPECT_EQ(error, cudaErrorLaunchFailure);
  EXPECT_NE(printed.find(servelab::cuda_host::last_failure()), std::string::npos);
  return servelab::cuda_host::last_failure();
}

__global__ void barriers_kernel(int mistake) {
  if (mistake == 1 && threadIdx.x == 5) return;
  if (mistake == 2 && threadIdx.x < 32) {
    block_barrier();
  } else {
    block_barrier();
  }
  if (mistake == 3 && warp_id() == 1) return;
  named_barrier(1, mistake == 4 ? 32 : 64);
}

TEST(HostExecution, NoticesDivergentBarriers) {
  EXPECT_EQ(failure_of(barriers_kernel, 0), "");
  EXPECT_NE(failure_of(barriers_kernel, 1).find("1 have exited"), std::string::npos);
  EXPECT_NE(failure_of(barriers_kernel, 2).find("while others wait at"), std::string::npos);
  EXPECT_NE(failure_of(barriers_kernel, 3).find("32 have exited"), std::string::npos);
  EXPECT_EQ(failure_of(barriers_kernel, 4), "");  // two warps pass it one after the other
}

__global__ void warp_kernel(int mistake) {
  if (mistake == 1 && lane_id() == 3) return;
  float x = 1;
  if (mistake == 2 && lane_id() < 16) {
    x = shuffle(x, 0);
  } else {
    x = shuffle_xor(x, 1);
  }
}

TEST(HostExecution, NoticesLanesThatPart) {
  EXPECT_EQ(failure_of(warp_kernel, 0), "");
  EXPECT_NE(failure_of(warp_kernel, 1).find("have exited"), std::string::npos);
  EXPECT_NE(failure_of(warp_kernel, 2).find("lanes of a warp part"), std::string::npos);
  EXPECT_NE(failure_of(warp_kernel, 0, 40).find("under 32 threads"), std::string::npos);
}

__global__ void memory_kernel(int mistake) {
  char* const shared = shared_memory();
  if (mistake == 1 && threadIdx.x == 7) shared[64] = 0;
  if (mistake == 2 && threadIdx.x == 7) shared[-1] = 0;
  if (mistake == 3) store_16(shared + 8, {});
}

TEST(HostExecution, NoticesWritesOutsideOfSharedMemory) {
  EXPECT_EQ(failure_of(memory_kernel, 0), "");
  EXPECT_NE(failure_of(memory_kernel, 1).find("at byte 64 of 64"), std::string::npos);
  EXPECT_NE(failure_of(memory_kernel, 2).find("at byte -1 of 64"), std::string::npos);
  EXPECT_NE(failure_of(memory_kernel, 3).find("unaligned store"), std::string::npos);
}

__global__ void copy_kernel(const float* from, float* to, int pending) {
  auto* const shared = reinterpret_cast<float*>(shared_memory());
  for (int group = 0; group < 2; ++group) {
    copy_async_16(shared + 4 * group, from + 4 * group, group == 0);
    copy_async_commit();
  }
  if (pending == 1) copy_async_wait<1>();
  if (pending == 0) copy_async_wait<0>();
  for (int i = 0; i < 8; ++i) to[i] = shared[i];
  copy_async_wait<0>();
}

TEST(HostExecution, ACopyIsThereOnlyAfterItsWait) {
  alignas(16) float from[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  for (const int pending : {2, 1, 0}) {
    float to[8] = {};
    ASSERT_EQ(launch(copy_kernel, 1, 1, 32, nullptr, static_cast<const float*>(from),
                     static_cast<float*>(to), pending),
              cudaSuccess);
    EXPECT_EQ(std::isnan(to[0]), pending == 2);
    EXPECT_EQ(std::isnan(to[4]), pending > 0);
    if (pending == 0) {
      EXPECT_EQ(to[3] + to[4], 4);  // the second group is zeros
    }
  }
}

// c[16, 8] = a[16, 16] b[16, 8] through shared memory; b is stored as it is, k by n.
template <class T>
__global__ void product_kernel(const T* a, const T* b, float* c) {
  auto* const tile_a = reinterpret_cast<T*>(shared_memory());
  T* const tile_b = tile_a + 256;
  for (int i = lane_id(); i < 256; i += kWarp) tile_a[i] = a[i];
  for (int i = lane_id(); i < 128; i += kWarp) {
    tile_b[(i / 8) * 16 + i % 8] = b[i];
    tile_b[(i / 8) * 16 + 8 + i % 8] = T{0};
  }
  warp_barrier();
  std::uint32_t fragment_a[4];
  std::uint32_t fragment_b[4];
  const int lane = lane_id();
  load_matrices(fragment_a, tile_a + (lane % 16) * 16 + lane / 16 * 8);
  load_matrices_transposed(fragment_b, tile_b + (lane % 16) * 16 + lane / 16 * 8);
  float sums[4] = {};
  multiply_add<T>(sums, fragment_a, fragment_b[0], fragment_b[1]);
  const int at = lane / 4 * 8 + lane % 4 * 2;
  c[at] = sums[0];
  c[at + 1] = sums[1];
  c[at + 64] = sums[2];
  c[at + 65] = sums[3];
}

TEST(HostExecution, MatrixFragmentsMakeAProduct) {
  Random random(2);
  std::vector<Bf16> a(256);
  std::vector<Bf16> b(128);
  for (Bf16& x : a) x = to_bf16(random.real());
  for (Bf16& x : b) x = to_bf16(random.real());
  std::vector<float> c(128);
  ASSERT_EQ(launch(product_kernel<Bf16>, 1, 32, 1024, nullptr, a.data(), b.data(), c.data()),
            cudaSuccess);
  for (std::size_t i = 0; i < 16; ++i) {
    for (std::size_t j = 0; j < 8; ++j) {
      float expected = 0;
      for (std::size_t k = 0; k < 16; ++k) expected += to_f32(a[i * 16 + k]) * to_f32(b[k * 8 + j]);
      ASSERT_NEAR(c[i * 8 + j], expected, 1e-6f);
    }
  }
}

__global__ void shuffles_kernel(int* to) {
  const int lane = lane_id();
  int* const own = to + lane * 5;
  own[0] = shuffle(lane, 7);
  own[1] = shuffle_xor(lane, 5);
  own[2] = shuffle_up(lane, 2);
  own[3] = shuffle_down(lane, 3);
  own[4] = static_cast<int>(ballot(lane % 2 == 1));
}

TEST(HostExecution, ShufflesAndBallot) {
  std::vector<int> got(160);
  ASSERT_EQ(launch(shuffles_kernel, 1, 32, 0, nullptr, got.data()), cudaSuccess);
  for (int lane = 0; lane < 32; ++lane) {
    const int* own = got.data() + lane * 5;
    EXPECT_EQ(own[0], 7);
    EXPECT_EQ(own[1], lane ^ 5);
    EXPECT_EQ(own[2], lane < 2 ? lane : lane - 2);
    EXPECT_EQ(own[3], lane + 3 > 31 ? lane : lane + 3);
    EXPECT_EQ(static_cast<unsigned>(own[4]), 0xaaaaaaaau);
  }
}

TEST(HostExecution, RefusesWhatNoDeviceCanLaunch) {
  EXPECT_EQ(launch(warp_kernel, 1, 2048, 0, nullptr, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(warp_kernel, 1, 32, 228 * 1024, nullptr, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(warp_kernel, 0, 32, 0, nullptr, 0), cudaSuccess);
}

}  // namespace
}  // namespace servelab::kernels::cuda
