// Random LoRA adapters on the device under test.
#ifndef SERVELAB_TESTS_GPU_LORA_ADAPTER_H_
#define SERVELAB_TESTS_GPU_LORA_ADAPTER_H_

#include <memory>
#include <vector>

#include "kernels/cuda/lora.h"
#include "tests/gpu/device.h"
#include "tests/kernels/support.h"

namespace servelab::kernels::cuda {

inline constexpr float kLoraScale = 0.75f;

// One adapter's pair for one layer, in device memory that is not a byte longer than it says.
struct LoraAdapter {
  LoraAdapter(DType type, int in, int out, int rank, int width, Random& random)
      : rank(rank), width(width) {
    a.resize(static_cast<std::size_t>(width * in));
    b.resize(static_cast<std::size_t>(out * width));
    for (int i = 0; i < rank * in; ++i) a[static_cast<std::size_t>(i)] = random.real();
    for (int i = 0; i < out * width; ++i) {
      if (i % width < rank) b[static_cast<std::size_t>(i)] = random.real();
    }
    device_a = std::make_unique<DeviceTensor>(type, a);
    device_b = std::make_unique<DeviceTensor>(type, b);
  }
  LoraPair pair() const { return {device_a->data(), device_b->data(), rank, width, kLoraScale}; }

  int rank;
  int width;
  std::vector<float> a;
  std::vector<float> b;
  std::unique_ptr<DeviceTensor> device_a;
  std::unique_ptr<DeviceTensor> device_b;
};

}  // namespace servelab::kernels::cuda

#endif  // SERVELAB_TESTS_GPU_LORA_ADAPTER_H_
