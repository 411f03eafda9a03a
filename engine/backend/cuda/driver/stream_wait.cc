// The driver's function is found at run time: nothing links with its library, and a program built
// here starts where there is none.
#include "engine/backend/cuda/stream_wait.h"

#include <cudaTypedefs.h>

#include <string>

#include "engine/core/check.h"

namespace servelab::cuda {
namespace {

using WaitValue = PFN_cuStreamWaitValue32_v11070;

WaitValue find_wait_value() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status{};
  constexpr unsigned kSince = 11070;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &found, kSince,
                                                             cudaEnableDefault, &status);
  if (error == cudaSuccess && status == cudaDriverEntryPointSuccess) {
    return reinterpret_cast<WaitValue>(found);
  }
  throw SpecError("the CUDA engine: LoRA on the host needs cuStreamWaitValue32 of the driver (" +
                  std::string(error == cudaSuccess ? "it has none" : cudaGetErrorString(error)) +
                  "); update the driver, or use a technique without LoRA on the host");
}

WaitValue wait_value() {
  static const WaitValue function = find_wait_value();
  return function;
}

}  // namespace

void require_stream_wait() { static_cast<void>(wait_value()); }

void hold_until(cudaStream_t stream, const std::uint32_t* value, std::uint32_t number) {
  // Pinned memory has one address for host and device.
  const auto address = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(value));
  const CUresult result = wait_value()(stream, address, number, CU_STREAM_WAIT_VALUE_GEQ);
  if (result == CUDA_SUCCESS) return;
  throw SpecError("the CUDA engine: waiting for the host's LoRA: the driver's error " +
                  std::to_string(static_cast<int>(result)));
}

}  // namespace servelab::cuda
