#include "engine/backend/cuda/stream_wait.h"

#include <cudaTypedefs.h>

#include "engine/backend/cuda/driver/entry_point.h"

namespace servelab::cuda {
namespace {

constexpr const char* kWhat = "LoRA on the host";

using WaitValue = PFN_cuStreamWaitValue32_v11070;

WaitValue wait_value() {
  static const WaitValue function = [] {
    WaitValue found = nullptr;
    find_entry_point("cuStreamWaitValue32", 11070, kWhat, &found);
    return found;
  }();
  return function;
}

}  // namespace

void require_stream_wait() { static_cast<void>(wait_value()); }

void hold_until(cudaStream_t stream, const std::uint32_t* value, std::uint32_t number) {
  // Pinned memory has one address for host and device.
  const auto address = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(value));
  check_driver(wait_value()(stream, address, number, CU_STREAM_WAIT_VALUE_GEQ), kWhat,
               "having a stream wait for the host");
}

}  // namespace servelab::cuda
