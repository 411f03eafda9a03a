#include "engine/backend/cuda/collective.h"

#include "engine/core/check.h"

namespace servelab::cuda {

std::vector<std::unique_ptr<Collective>> make_collectives(int /*ranks*/, int /*first_device*/) {
  throw SpecError("cluster.tensor_parallel: this servelab was built without NCCL; use 1");
}

}  // namespace servelab::cuda
