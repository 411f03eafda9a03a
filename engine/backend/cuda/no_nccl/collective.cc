#include "engine/backend/cuda/collective.h"

#include "engine/core/check.h"

namespace servelab::cuda {
namespace {

[[noreturn]] void refuse() {
  throw SpecError("cluster.tensor_parallel: this servelab was built without NCCL; use 1");
}

}  // namespace

std::vector<std::unique_ptr<Collective>> make_collectives(int /*ranks*/, int /*first_device*/) {
  refuse();
}

std::string name_group() { refuse(); }

std::unique_ptr<Collective> join_group(const std::string& /*name*/, const Shard& /*shard*/,
                                       int /*device*/) {
  refuse();
}

}  // namespace servelab::cuda
