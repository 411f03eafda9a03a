// Sums over the ranks of a tensor-parallel replica.
#ifndef SERVELAB_BACKEND_CUDA_COLLECTIVE_H_
#define SERVELAB_BACKEND_CUDA_COLLECTIVE_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "engine/model/shard.h"

namespace servelab::cuda {

// One rank's seat among all. Every rank makes the same calls in the same order, each from a thread
// of its own.
class Collective {
 public:
  virtual ~Collective() = default;

  // x[i] = the sum of all ranks' x[i], f32 in place, in order with the other work of `stream`.
  // Throws SpecError.
  virtual void sum(float* x, std::size_t count, cudaStream_t stream) = 0;
};

// Ranks that are threads of this process, on the devices from `first_device` on. Throws SpecError
// where this program was built without NCCL, or NCCL refuses.
std::vector<std::unique_ptr<Collective>> make_collectives(int ranks, int first_device);

// Ranks that are processes: one of them makes the name, printable and of at most 4,096 letters, and
// each takes its seat under it on its device; returns when all have. Both throw SpecError as
// make_collectives() does.
std::string name_group();
std::unique_ptr<Collective> join_group(const std::string& name, const Shard& shard, int device);

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_COLLECTIVE_H_
