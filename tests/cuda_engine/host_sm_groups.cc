// The SMs of the device on the host, which are only a number: any stream computes the same.
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/backend/cuda/runtime.h"
#include "engine/backend/cuda/sm_groups.h"

namespace servelab::cuda {
namespace {

class HostGroups final : public SmGroups {
 public:
  int groups() const override { return 4; }
  int sms_per_group() const override { return 1; }
  int sms() const override { return 4; }
  cudaStream_t take_stream(int begin, int count) override {
    std::vector<cudaStream_t>& free = free_[{begin, count}];
    if (free.empty()) {
      streams_.push_back(std::make_unique<Stream>());
      return streams_.back()->get();
    }
    cudaStream_t stream = free.back();
    free.pop_back();
    return stream;
  }
  void give_back(int begin, int count, cudaStream_t stream) override {
    free_[{begin, count}].push_back(stream);
  }
  void in_context(int /*begin*/, int /*count*/, const std::function<void()>& make) override {
    make();
  }

 private:
  std::vector<std::unique_ptr<Stream>> streams_;
  std::map<std::pair<int, int>, std::vector<cudaStream_t>> free_;
};

}  // namespace

std::unique_ptr<SmGroups> make_sm_groups(int /*device*/) { return std::make_unique<HostGroups>(); }

}  // namespace servelab::cuda
