#include "engine/backend/cuda/driver/entry_point.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <string>

#include "engine/core/check.h"

namespace servelab::cuda {

void* find_entry_point(const char* name, unsigned since, const char* what) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status{};
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &found, since, cudaEnableDefault, &status);
  if (error == cudaSuccess && status == cudaDriverEntryPointSuccess) return found;
  throw SpecError(std::string(what) + ": the driver has no " + name + "; it needs to be that of " +
                  "CUDA " + std::to_string(since / 1000) + "." + std::to_string(since % 1000 / 10) +
                  " or newer");
}

void check_driver(CUresult result, const char* what, const char* doing) {
  if (result == CUDA_SUCCESS) return;
  PFN_cuGetErrorString_v6000 describe = nullptr;
  find_entry_point("cuGetErrorString", 6000, what, &describe);
  const char* text = nullptr;
  if (describe(result, &text) != CUDA_SUCCESS || text == nullptr) text = "unknown error";
  throw SpecError(std::string(what) + ": " + doing + ": " + text);
}

}  // namespace servelab::cuda
