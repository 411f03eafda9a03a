// Green contexts: contexts that share the primary context's memory and whose kernels run on some of
// the SMs. The driver's functions are found at run time, so that nothing links with its library.
#include "engine/backend/cuda/sm_groups.h"

#include <cudaTypedefs.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/backend/cuda/driver/entry_point.h"
#include "engine/core/check.h"

namespace servelab::cuda {
namespace {

constexpr const char* kWhat = "shares of a device's SMs";

struct Driver {
  PFN_cuDeviceGet_v2000 device_get;
  PFN_cuDeviceGetDevResource_v12040 get_resource;
  PFN_cuDevSmResourceSplitByCount_v12040 split;
  PFN_cuDevResourceGenerateDesc_v12040 describe;
  PFN_cuGreenCtxCreate_v12040 create;
  PFN_cuGreenCtxDestroy_v12040 destroy;
  PFN_cuGreenCtxStreamCreate_v12050 create_stream;
  PFN_cuCtxFromGreenCtx_v12040 context_of;
  PFN_cuCtxPushCurrent_v4000 push;
  PFN_cuCtxPopCurrent_v4000 pop;
  PFN_cuStreamDestroy_v4000 destroy_stream;

  Driver() {
    find_entry_point("cuDeviceGet", 2000, kWhat, &device_get);
    find_entry_point("cuDeviceGetDevResource", 12040, kWhat, &get_resource);
    find_entry_point("cuDevSmResourceSplitByCount", 12040, kWhat, &split);
    find_entry_point("cuDevResourceGenerateDesc", 12040, kWhat, &describe);
    find_entry_point("cuGreenCtxCreate", 12040, kWhat, &create);
    find_entry_point("cuGreenCtxDestroy", 12040, kWhat, &destroy);
    find_entry_point("cuGreenCtxStreamCreate", 12050, kWhat, &create_stream);
    find_entry_point("cuCtxFromGreenCtx", 12040, kWhat, &context_of);
    find_entry_point("cuCtxPushCurrent", 4000, kWhat, &push);
    find_entry_point("cuCtxPopCurrent", 4000, kWhat, &pop);
    find_entry_point("cuStreamDestroy", 4000, kWhat, &destroy_stream);
  }
};

class GreenContexts final : public SmGroups {
 public:
  explicit GreenContexts(int device) {
    check_driver(driver_.device_get(&device_, device), kWhat, "finding the device");
    CUdevResource all{};
    check_driver(driver_.get_resource(device_, &all, CU_DEV_RESOURCE_TYPE_SM), kWhat,
                 "asking for its SMs");
    sms_ = static_cast<int>(all.sm.smCount);
    unsigned count = 0;  // of the smallest groups
    check_driver(driver_.split(nullptr, &count, &all, nullptr, 0, all.sm.minSmPartitionSize), kWhat,
                 "counting groups of SMs");
    groups_.resize(count);
    check_driver(driver_.split(groups_.data(), &count, &all, nullptr, 0, all.sm.minSmPartitionSize),
                 kWhat, "splitting the SMs");
    groups_.resize(count);
    if (groups_.empty()) throw SpecError("shares of a device's SMs: this device cannot be split");
  }

  ~GreenContexts() override {
    for (const auto& [place, confined] : confined_) {
      for (CUstream stream : confined.free) driver_.destroy_stream(stream);
      driver_.destroy(confined.context);
    }
  }

  int groups() const override { return static_cast<int>(groups_.size()); }
  int sms_per_group() const override { return static_cast<int>(groups_.front().sm.smCount); }
  int sms() const override { return sms_; }

  cudaStream_t take_stream(int begin, int count) override {
    SL_CHECK(begin >= 0 && count >= 1 && begin + count <= groups(), "these groups exist");
    Confined& confined = of(begin, count);
    CUstream stream = nullptr;
    if (!confined.free.empty()) {
      stream = confined.free.back();
      confined.free.pop_back();
      return stream;
    }
    check_driver(driver_.create_stream(&stream, confined.context, CU_STREAM_NON_BLOCKING, 0), kWhat,
                 "making a stream in a green context");
    return stream;
  }

  void give_back(int begin, int count, cudaStream_t stream) override {
    of(begin, count).free.push_back(stream);
  }

  void in_context(int begin, int count, const std::function<void()>& make) override {
    CUcontext current = nullptr;
    {
      const std::lock_guard lock(mutex_);
      check_driver(driver_.context_of(&current, confined_.at({begin, count}).context), kWhat,
                   "finding a green context");
    }
    check_driver(driver_.push(current), kWhat, "entering a green context");
    const auto leave = [this](void*) {
      CUcontext left = nullptr;
      driver_.pop(&left);
    };
    const std::unique_ptr<void, decltype(leave)> guard(this, leave);
    make();
  }

 private:
  struct Confined {
    CUgreenCtx context = nullptr;
    std::vector<CUstream> free;
  };

  Confined& of(int begin, int count) {
    const std::lock_guard lock(mutex_);
    const auto [found, is_new] = confined_.try_emplace({begin, count});
    if (is_new) make(begin, count, &found->second);
    return found->second;
  }

  void make(int begin, int count, Confined* confined) {
    CUdevResourceDesc description{};
    check_driver(driver_.describe(&description, &groups_[static_cast<std::size_t>(begin)],
                                  static_cast<unsigned>(count)),
                 kWhat, "describing a part of the SMs");
    check_driver(
        driver_.create(&confined->context, description, device_, CU_GREEN_CTX_DEFAULT_STREAM),
        kWhat, "making a green context");
  }

  const Driver driver_;
  CUdevice device_ = 0;
  int sms_ = 0;
  std::vector<CUdevResource> groups_;
  std::mutex mutex_;                                  // while confined_ grows
  std::map<std::pair<int, int>, Confined> confined_;  // by first group and number
};

}  // namespace

std::unique_ptr<SmGroups> make_sm_groups(int device) {
  return std::make_unique<GreenContexts>(device);
}

}  // namespace servelab::cuda
