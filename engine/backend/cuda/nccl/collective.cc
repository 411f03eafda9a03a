// NCCL is loaded when tensor parallelism asks for it, so that a program built with it also starts
// where it is not installed.
#include "engine/backend/cuda/collective.h"

#include <dlfcn.h>
#include <nccl.h>

#include <cstring>
#include <numeric>
#include <string>

#include "engine/core/check.h"

namespace servelab::cuda {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";

class Nccl {
 public:
  Nccl() : library_(dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) {
      throw SpecError("cluster.tensor_parallel: NCCL cannot be loaded (" + std::string(dlerror()) +
                      "); install it, or use 1");
    }
    find("ncclCommInitAll", &init_all);
    find("ncclGetUniqueId", &unique_id);
    find("ncclCommInitRank", &init_rank);
    find("ncclCommDestroy", &destroy);
    find("ncclAllReduce", &all_reduce);
    find("ncclGetErrorString", &error_string);
  }

  void check(ncclResult_t result, const char* doing) const {
    if (result == ncclSuccess) return;
    throw SpecError(std::string("the CUDA engine: ") + doing + ": " + error_string(result));
  }

  decltype(&ncclCommInitAll) init_all = nullptr;
  decltype(&ncclGetUniqueId) unique_id = nullptr;
  decltype(&ncclCommInitRank) init_rank = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;

 private:
  template <class Function>
  void find(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library_, name));
    if (*function == nullptr) {
      throw SpecError(std::string("cluster.tensor_parallel: ") + kLibrary + " has no " + name);
    }
  }

  void* library_;  // stays loaded
  decltype(&ncclGetErrorString) error_string = nullptr;
};

const Nccl& nccl() {
  static const Nccl loaded;
  return loaded;
}

class NcclCollective final : public Collective {
 public:
  explicit NcclCollective(ncclComm_t communicator) : communicator_(communicator) {}
  ~NcclCollective() override { nccl().destroy(communicator_); }

  void sum(float* x, std::size_t count, cudaStream_t stream) override {
    nccl().check(nccl().all_reduce(x, x, count, ncclFloat, ncclSum, communicator_, stream),
                 "summing over the ranks");
  }

 private:
  ncclComm_t communicator_;
};

// NCCL's name for a group is so many arbitrary bytes; ours is those in hexadecimal.
constexpr char kDigits[] = "0123456789abcdef";

ncclUniqueId parse_name(const std::string& name) {
  ncclUniqueId id;
  if (name.size() != 2 * sizeof id.internal) throw SpecError("NCCL: not the name of a group");
  for (std::size_t i = 0; i < sizeof id.internal; ++i) {
    const char* const high = std::strchr(kDigits, name[2 * i]);
    const char* const low = std::strchr(kDigits, name[2 * i + 1]);
    if (high == nullptr || low == nullptr) throw SpecError("NCCL: not the name of a group");
    id.internal[i] = static_cast<char>((high - kDigits) * 16 + (low - kDigits));
  }
  return id;
}

}  // namespace

std::string name_group() {
  ncclUniqueId id;
  nccl().check(nccl().unique_id(&id), "naming a group of ranks");
  std::string name;
  for (const char each : id.internal) {
    const auto byte = static_cast<unsigned char>(each);
    name += kDigits[byte / 16];
    name += kDigits[byte % 16];
  }
  return name;
}

std::unique_ptr<Collective> join_group(const std::string& name, const Shard& shard, int device) {
  const ncclUniqueId id = parse_name(name);
  if (const cudaError_t error = cudaSetDevice(device); error != cudaSuccess) {
    throw SpecError(std::string("the CUDA engine: choosing the device: ") +
                    cudaGetErrorString(error));
  }
  ncclComm_t communicator = nullptr;
  nccl().check(nccl().init_rank(&communicator, shard.ranks, id, shard.rank), "starting NCCL");
  return std::make_unique<NcclCollective>(communicator);
}

std::vector<std::unique_ptr<Collective>> make_collectives(int ranks, int first_device) {
  std::vector<int> devices(static_cast<std::size_t>(ranks));
  std::iota(devices.begin(), devices.end(), first_device);
  std::vector<ncclComm_t> communicators(devices.size());
  nccl().check(nccl().init_all(communicators.data(), ranks, devices.data()), "starting NCCL");
  std::vector<std::unique_ptr<Collective>> seats;
  for (const ncclComm_t each : communicators) {
    seats.push_back(std::make_unique<NcclCollective>(each));
  }
  return seats;
}

}  // namespace servelab::cuda
