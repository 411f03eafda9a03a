// What PyTorch's caching allocator reserves of a device for tensors that stay. It takes segments
// from the driver and cuts tensors out of them; engines that count reserved bytes, as vLLM does,
// lose what is left of segments.
#ifndef SERVELAB_BACKEND_COST_CACHING_ALLOCATOR_H_
#define SERVELAB_BACKEND_COST_CACHING_ALLOCATOR_H_

#include <span>

#include "engine/core/units.h"

namespace servelab {

// Of tensors of these bytes, made in this order, none of which is freed. PyTorch's default
// settings, as its CUDA semantics and c10/cuda/CUDACachingAllocator.cpp have them: sizes in
// multiples of 512 B; up to 1 MiB from segments of 2 MiB, below 10 MiB from segments of 20 MiB,
// larger ones from a segment of their own, a multiple of 2 MiB; the smallest piece that fits is
// taken, and what is left of it is for others up to 1 MiB, or above, as it is itself.
Bytes reserved_in_segments(std::span<const Bytes> tensors);

}  // namespace servelab

#endif  // SERVELAB_BACKEND_COST_CACHING_ALLOCATOR_H_
