#include "engine/backend/cuda/collective.h"

#include <nccl.h>

#include <numeric>
#include <string>

#include "engine/core/check.h"

namespace servelab::cuda {
namespace {

void check_nccl(ncclResult_t result, const char* doing) {
  if (result == ncclSuccess) return;
  throw SpecError(std::string("the CUDA engine: ") + doing + ": " + ncclGetErrorString(result));
}

class NcclCollective final : public Collective {
 public:
  explicit NcclCollective(ncclComm_t communicator) : communicator_(communicator) {}
  ~NcclCollective() override { ncclCommDestroy(communicator_); }

  void sum(float* x, std::size_t count, cudaStream_t stream) override {
    check_nccl(ncclAllReduce(x, x, count, ncclFloat, ncclSum, communicator_, stream),
               "summing over the ranks");
  }

 private:
  ncclComm_t communicator_;
};

}  // namespace

std::vector<std::unique_ptr<Collective>> make_collectives(int ranks, int first_device) {
  std::vector<int> devices(static_cast<std::size_t>(ranks));
  std::iota(devices.begin(), devices.end(), first_device);
  std::vector<ncclComm_t> communicators(devices.size());
  check_nccl(ncclCommInitAll(communicators.data(), ranks, devices.data()), "starting NCCL");
  std::vector<std::unique_ptr<Collective>> seats;
  for (const ncclComm_t each : communicators) {
    seats.push_back(std::make_unique<NcclCollective>(each));
  }
  return seats;
}

}  // namespace servelab::cuda
