#include "tests/gpu/device.h"

#include <cmath>
#include <stdexcept>

namespace servelab::kernels::cuda {
namespace {

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
  }
}

}  // namespace

std::string why_no_device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return std::string("no CUDA device: ") + cudaGetErrorString(error);
  return count > 0 ? "" : "no CUDA device: the driver counts none";
}

DeviceMemory::DeviceMemory(std::size_t bytes) : bytes_(bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes + 2 * kGuard), "cudaMalloc");
  all_ = static_cast<char*>(memory);
  check(cudaMemsetAsync(all_, kPattern, bytes + 2 * kGuard, nullptr), "cudaMemsetAsync");
}

DeviceMemory::~DeviceMemory() { static_cast<void>(cudaFree(all_)); }

void DeviceMemory::upload(const void* from, std::size_t bytes, std::size_t offset) {
  if (bytes == 0) return;  // `from` may be null
  check(cudaMemcpy(all_ + kGuard + offset, from, bytes, cudaMemcpyDefault), "upload");
}

std::vector<char> DeviceMemory::download() const {
  std::vector<char> result(bytes_);
  check(cudaStreamSynchronize(nullptr), "the device");
  check(cudaMemcpy(result.data(), all_ + kGuard, bytes_, cudaMemcpyDefault), "download");
  return result;
}

bool DeviceMemory::intact() const {
  std::vector<unsigned char> guards(2 * kGuard);
  check(cudaStreamSynchronize(nullptr), "the device");
  check(cudaMemcpy(guards.data(), all_, kGuard, cudaMemcpyDefault), "download");
  check(cudaMemcpy(guards.data() + kGuard, all_ + kGuard + bytes_, kGuard, cudaMemcpyDefault),
        "download");
  for (const unsigned char byte : guards) {
    if (byte != kPattern) return false;
  }
  return true;
}

::testing::AssertionResult close(float got, float expected, DType type, float scale,
                                 float sum_error) {
  // A sum that differs a little may round to the next value: two half units.
  const float tolerance = 2 * rounding(type) * std::fabs(expected) + sum_error * scale + 1e-7f;
  if (std::fabs(got - expected) <= tolerance) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << got << " instead of " << expected << " (within " << tolerance << ")";
}

}  // namespace servelab::kernels::cuda
