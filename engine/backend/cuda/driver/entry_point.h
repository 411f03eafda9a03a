// The driver's functions by name, so that nothing links with its library.
#ifndef SERVELAB_BACKEND_CUDA_DRIVER_ENTRY_POINT_H_
#define SERVELAB_BACKEND_CUDA_DRIVER_ENTRY_POINT_H_

#include <cuda.h>

namespace servelab::cuda {

// Throws SpecError, "`what`: ...", when the driver is older than `since` (12040 is CUDA 12.4).
void* find_entry_point(const char* name, unsigned since, const char* what);

template <class Function>
void find_entry_point(const char* name, unsigned since, const char* what, Function* function) {
  *function = reinterpret_cast<Function>(find_entry_point(name, since, what));
}

// Throws SpecError, "`what`: `doing`: ...", when `result` is an error.
void check_driver(CUresult result, const char* what, const char* doing);

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_DRIVER_ENTRY_POINT_H_
