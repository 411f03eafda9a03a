// LoRA on the host beside a step on the device (CaraServe 4): as soon as the input x of a matrix is
// known, its rows with host adapters go to pinned memory; while the device computes x W, and LoRA
// of its own adapters, threads of the host compute x A B; the stream waits for that and adds it.
#ifndef SERVELAB_BACKEND_CUDA_HOST_LORA_H_
#define SERVELAB_BACKEND_CUDA_HOST_LORA_H_

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/backend/cuda/runtime.h"
#include "engine/backend/device/accelerator.h"
#include "engine/backend/device/local_device.h"
#include "engine/backend/device/shapes.h"
#include "engine/backend/host_lora/team.h"
#include "kernels/cuda/host_rows.h"

namespace servelab::cuda {

// An adapter that stays in host memory.
class HostAdapter final : public DeviceAdapter {
 public:
  explicit HostAdapter(std::shared_ptr<const PackedAdapter> packed) : packed_(std::move(packed)) {}
  const PackedAdapter& packed() const { return *packed_; }

 private:
  const std::shared_ptr<const PackedAdapter> packed_;
};

// A step's rows with host adapters, packed (RowStretches), each adapter's together.
struct HostRows {
  struct Group {
    const HostAdapter* adapter = nullptr;
    int begin = 0;  // packed
    int count = 0;
  };
  kernels::cuda::RowStretches rows;
  std::vector<Group> groups;
};

class HostLora {
 public:
  // `model`: this rank's part. `most_rows`: of any step. `arrived`: of the device, zero. Throws
  // SpecError when memory is short or the driver cannot do it.
  HostLora(const ModelConfig& model, const DevicePlan& plan, int rank, int most_rows,
           std::int32_t* arrived, PinnedPool* pinned);
  ~HostLora();
  HostLora(const HostLora&) = delete;
  HostLora& operator=(const HostLora&) = delete;

  // Packs an adapter now, so that adapter() finds it packed. Any thread. Both throw SpecError for
  // one that changes other layers than the plan's targets.
  void hold(std::shared_ptr<const LoraWeights> weights);
  std::unique_ptr<HostAdapter> adapter(const LoraWeights& weights);

  // What one step does. Left without finish(), because something failed, it gives up: neither the
  // stream nor the host's threads go on waiting for each other, and the stream has come to its end.
  class Step {
   public:
    // `rows` lives as long. All of the step is put on `stream`.
    Step(HostLora* host, const HostRows& rows, HostCopy copy, cudaStream_t stream);
    ~Step();
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

    // When the stream has come to its end. Throws what failed on the host, also before leave().
    void finish();

   private:
    HostLora* const host_;
    const cudaStream_t stream_;
    bool done_ = false;
  };

  // Within a step, for each matrix in order of the layers. x [rows, k] of the device's type, when
  // it is known; y [rows, n] of y_type += x A B, when the device's own part is in it. But for
  // kFused send() waits until the stream has come there.
  void send(int layer, Fused which, const void* x);
  void add(int layer, Fused which, kernels::DType y_type, void* y);

  // Within a step, before anything of `layer` is on the stream: returns when the host has computed
  // all before it, so that the stream has done what led there. Throws what failed on the stream.
  void settle(int layer);
  // After settle(): the step needs the host no more. Several ranks' steps go on to their ends
  // together, whatever failed on one's host.
  void leave();

  // Since it was last asked, after a step.
  HostWork take_work() { return team_->take_work(); }

 private:
  std::shared_ptr<const PackedAdapter> pack(const LoraWeights& weights) const;
  void begin(const HostRows& rows, HostCopy copy, cudaStream_t stream);
  bool touched(int layer, Fused which) const;
  int& job_of(int layer, Fused which);
  std::uint32_t number_of(int job) const;
  void lead();
  void start(std::uint32_t first, int jobs);
  void wait_until_idle();
  void finish();
  void abandon();

  const Shapes shapes_;
  const kernels::DType type_;               // of activations
  const kernels::DType panels_type_;        // of A, B and of x as the CPU multiplies it
  const std::vector<LinearLayer> targets_;  // that the memory below is wide enough for
  struct Held {
    std::shared_ptr<const LoraWeights> weights;  // so that its address stays its own
    std::shared_ptr<const PackedAdapter> packed;
  };
  std::mutex mutex_;
  std::unordered_map<const LoraWeights*, Held> held_;  // guarded
  std::unique_ptr<std::byte[]> pageable_;              // rows of x, for HostCopy::kPageable
  std::size_t x_bytes_ = 0;
  HostMemory words_;
  std::uint32_t* reply_ = nullptr;  // the latest job that is done: the stream waits for it
  std::int32_t* const arrived_;
  std::unique_ptr<host_lora::Team> team_;
  bool registered_ = false;  // the team's memory, by the runtime

  // Follows the step's jobs, and replies to each behind the team's last part of it. While `busy_`
  // it alone waits for the team.
  std::mutex mutex_of_step_;
  std::condition_variable changed_;
  bool busy_ = false;  // guarded, as are the next
  bool stop_ = false;
  std::uint32_t first_ = 0;
  int count_ = 0;
  std::exception_ptr failure_;
  std::thread leader_;

  // Of the step.
  const HostRows* rows_ = nullptr;
  cudaStream_t stream_ = nullptr;
  HostCopy copy_ = HostCopy::kFused;
  std::vector<host_lora::Job> jobs_;
  std::vector<int> job_of_;  // by layer and matrix; kNoJob
};

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_HOST_LORA_H_
