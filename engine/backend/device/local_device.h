// A device of this process, which an engine fills in: its adapters by number, contexts' copies in
// host memory, and a job taken apart in its order.
#ifndef SERVELAB_BACKEND_DEVICE_LOCAL_DEVICE_H_
#define SERVELAB_BACKEND_DEVICE_LOCAL_DEVICE_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/backend/device/device.h"

namespace servelab {

// One adapter as an engine packed it. Given back to the device when destroyed.
class DeviceAdapter {
 public:
  virtual ~DeviceAdapter() = default;
  virtual void wait() const {}  // returns when all of it has arrived
};

// Host memory that the device copies from and to at full speed.
using HostMemory = std::unique_ptr<std::byte[], std::function<void(std::byte*)>>;

class LocalDevice : public Device {
 public:
  void hold(const Load& load, std::shared_ptr<const LoraWeights> weights) final;
  void load(const Load& load, std::shared_ptr<const LoraWeights> weights) final;
  void wait(AdapterId adapter) final;
  void evict(AdapterId adapter) final;
  void run(const DeviceJob& job, DeviceResult* result) final;

 protected:
  using Device::Device;

  // First of all in an engine's destructor: adapters and contexts go back to where they are from.
  void give_back_all();

  // What run() asks of an engine; the thread is always the job's.
  virtual void enter_thread() = 0;  // makes it fit: a core, a current device
  // Folds an adapter into a copy of the layers that it touches, or returns to the base weights,
  // which merging never writes, so they are restored bit for bit.
  virtual void merge(const DeviceAdapter& adapter) = 0;
  virtual void unmerge() = 0;
  // A context to and from host memory, in order with forward(). The memory stays until the job
  // ends.
  virtual HostMemory copy_out(const KvMove& move) = 0;
  virtual void copy_in(const KvMove& move, const std::byte* host) = 0;
  // One forward pass, for each sequence with its adapter: on the device or on the host, as the
  // sequence says; null: base model. `folded`: the copy of the layers to run on, or null; no LoRA
  // is computed beside it. All that the job began has ended when this returns.
  virtual void forward(const DeviceJob& job, std::span<const DeviceAdapter* const> adapters,
                       const DeviceAdapter* folded, DeviceResult* result) = 0;

  // Within forward(), on the job's thread: the device's copy of an adapter that the job began to
  // compute on the host, once all of it has arrived; null before. Good until forward() returns.
  virtual const DeviceAdapter* arrived(AdapterId adapter);

  // Any thread. `weights` live until DeviceAdapter::wait() has returned.
  virtual std::unique_ptr<DeviceAdapter> pack(const Load& load, const LoraWeights& weights) = 0;
  // One that stays in host memory, and takes none of the device's.
  virtual std::unique_ptr<DeviceAdapter> pack_on_host(const LoraWeights& weights) = 0;
  // Makes ready what pack() and pack_on_host() will need of these weights.
  virtual void prepare(const Load& load, std::shared_ptr<const LoraWeights> weights) = 0;

 private:
  struct Resident {
    std::shared_ptr<const LoraWeights> weights;  // until they have arrived
    std::shared_ptr<const DeviceAdapter> adapter;
    bool arrived = false;
  };
  std::shared_ptr<const DeviceAdapter> resident(AdapterId adapter);
  const DeviceAdapter* on_host(AdapterId adapter);
  void drop_unused(const DeviceJob& job);
  void move_contexts(const DeviceJob& job);

  std::mutex mutex_;
  std::unordered_map<AdapterId, Resident> residents_;                       // guarded
  std::unordered_map<AdapterId, std::shared_ptr<const LoraWeights>> held_;  // guarded

  // Of the thread that runs jobs.
  std::unordered_map<AdapterId, std::unique_ptr<const DeviceAdapter>> on_host_;  // as long as used
  std::unordered_map<RequestId, HostMemory> contexts_;
  std::vector<HostMemory> spent_;                             // still copied from, and
  std::vector<std::shared_ptr<const DeviceAdapter>> in_use_;  // used, until the job ends
};

}  // namespace servelab

#endif  // SERVELAB_BACKEND_DEVICE_LOCAL_DEVICE_H_
