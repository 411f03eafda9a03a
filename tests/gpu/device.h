// The device under test: a GPU, or the host that executes the same kernels (tests/kernels/
// cuda_host). Both are reached through the CUDA runtime's functions; which one a program gets is
// decided by what it is linked with.
#ifndef SERVELAB_TESTS_GPU_DEVICE_H_
#define SERVELAB_TESTS_GPU_DEVICE_H_

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/ref/ref.h"

namespace servelab::kernels::cuda {

// Why there is nothing to run on; empty where there is.
std::string why_no_device();

// Skips, with the reason, where there is no device.
class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = why_no_device();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  static constexpr cudaStream_t stream = nullptr;
};

// Skips as above; one parameter per type of element.
class DeviceTypeTest : public DeviceTest, public ::testing::WithParamInterface<DType> {
 protected:
  DType type() const { return GetParam(); }
};
inline std::string type_name(const ::testing::TestParamInfo<DType>& info) {
  return name(info.param);
}
#define SERVELAB_FOR_BOTH_TYPES(suite) \
  INSTANTIATE_TEST_SUITE_P(Types, suite, ::testing::Values(DType::kBf16, DType::kF16), type_name)

// `bytes` of device memory, 256-byte aligned, between guards. All of it begins as a pattern that is
// a NaN as f32, bf16 and f16.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  void* data() const { return all_ + kGuard; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data());
  }
  std::size_t bytes() const { return bytes_; }
  void upload(const void* from, std::size_t bytes, std::size_t offset = 0);
  std::vector<char> download() const;  // waits for the device
  bool intact() const;                 // no guard byte was written

 private:
  static constexpr std::size_t kGuard = 1024;
  static constexpr unsigned char kPattern = 0xff;
  std::size_t bytes_;
  char* all_ = nullptr;
};

// A DeviceMemory with T's, from a vector.
template <class T>
class DeviceVector : public DeviceMemory {
 public:
  explicit DeviceVector(const std::vector<T>& values) : DeviceMemory(values.size() * sizeof(T)) {
    upload(values.data(), values.size() * sizeof(T));
  }
  explicit DeviceVector(std::size_t count) : DeviceMemory(count * sizeof(T)) {}
  T* get() const { return as<T>(); }
  std::vector<T> values() const {
    const std::vector<char> raw = download();
    std::vector<T> result(raw.size() / sizeof(T));
    std::memcpy(result.data(), raw.data(), raw.size());
    return result;
  }
};

// Elements of a DType: on the device as such, on the host as the f32 that they stand for.
class DeviceTensor : public DeviceMemory {
 public:
  DeviceTensor(DType type, std::size_t count)
      : DeviceMemory(count * bytes_of(type)), type_(type), count_(count) {}
  // Rounds `values`; they become the rounded ones.
  DeviceTensor(DType type, std::vector<float>& values) : DeviceTensor(type, values.size()) {
    std::vector<char> raw(bytes());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      ref::store(type, raw.data(), at, values[i]);
      values[i] = ref::load(type, raw.data(), at);
    }
    upload(raw.data(), raw.size());
  }
  std::vector<float> values() const {
    const std::vector<char> raw = download();
    std::vector<float> result(count_);
    for (std::size_t i = 0; i < count_; ++i) {
      result[i] = ref::load(type_, raw.data(), static_cast<std::int64_t>(i));
    }
    return result;
  }

 private:
  DType type_;
  std::size_t count_;
};

// Half a unit in the last place of `type`, relative.
inline float rounding(DType type) {
  return type == DType::kBf16 ? 1.0f / 256 : type == DType::kF16 ? 1.0f / 2048 : 6e-8f;
}

// Whether `got` is `expected` to one rounding to `type` and a relative error of the f32 sums before
// it, beside `scale`, the magnitude of the terms.
::testing::AssertionResult close(float got, float expected, DType type, float scale = 1,
                                 float sum_error = 1e-5f);

}  // namespace servelab::kernels::cuda

#endif  // SERVELAB_TESTS_GPU_DEVICE_H_
