// LoRA on the host beside a step on the device (CaraServe 4): as soon as the input x of a matrix is
// known, its rows with host adapters go to pinned memory; while the device computes x W, and LoRA
// of its own adapters, threads of the host compute x A B; the stream waits for that and adds it.
#ifndef SERVELAB_BACKEND_CUDA_HOST_LORA_H_
#define SERVELAB_BACKEND_CUDA_HOST_LORA_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "engine/backend/cuda/host_adapter.h"
#include "engine/backend/cuda/host_workers.h"
#include "engine/backend/cuda/runtime.h"
#include "engine/backend/cuda/shapes.h"
#include "engine/backend/device/accelerator.h"
#include "kernels/cuda/host_rows.h"
#include "kernels/ops.h"

namespace servelab::cuda {

// Rows that one core computes at most, c in CaraServe 4.2: a request's L rows are shared by
// ceil(L / c) cores. 8 is what the paper's artifact sets for its A10s (its profile of one core,
// token_per_lora).
inline constexpr int kRowsPerCore = 8;

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

    // When the stream has come to its end. Throws what failed on the host.
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
  // After settle(): the step needs the host no more. Throws what failed on the host.
  void leave();

 private:
  struct Job {
    int layer = 0;
    Fused which = Fused::kQkv;
  };
  struct Piece {  // packed rows of one adapter
    const HostAdapter* adapter = nullptr;
    int begin = 0;
    int count = 0;
  };

  std::shared_ptr<const PackedAdapter> pack(const LoraWeights& weights) const;
  void begin(const HostRows& rows, HostCopy copy, cudaStream_t stream);
  bool touched(int layer, Fused which) const;
  std::int64_t& number_of(int layer, Fused which);
  void compute(const Job& job, const Piece& piece) const;
  const void* input(const Piece& piece, int k) const;
  void compute_target(const kernels::LoraPair& pair, const void* x, int rows, std::byte* out,
                      int ldo) const;

  const Shapes shapes_;
  const kernels::DType type_;               // of activations
  const kernels::DType panels_type_;        // of A, B and of x as the CPU multiplies it
  const std::vector<LinearLayer> targets_;  // that the memory below is wide enough for
  const kernels::Ops& ops_;
  const std::shared_ptr<AdapterStorage> storage_ = std::make_shared<AdapterStorage>();
  struct Held {
    std::shared_ptr<const LoraWeights> weights;  // so that its address stays its own
    std::shared_ptr<const PackedAdapter> packed;
  };
  std::mutex mutex_;
  std::unordered_map<const LoraWeights*, Held> held_;  // guarded
  std::size_t x_bytes_ = 0;
  HostMemory x_;                           // [packed rows][k]
  std::unique_ptr<std::byte[]> pageable_;  // the same, for HostCopy::kPageable
  HostMemory delta_;                       // [packed rows][n]
  HostMemory words_;
  std::uint32_t* signal_ = nullptr;
  std::uint32_t* reply_ = nullptr;
  std::int32_t* const arrived_;
  std::unique_ptr<HostWorkers> workers_;  // last: it ends before what it uses

  // Of the step.
  const HostRows* rows_ = nullptr;
  cudaStream_t stream_ = nullptr;
  HostCopy copy_ = HostCopy::kFused;
  std::byte* rows_of_x_ = nullptr;  // where they come to
  std::vector<Piece> pieces_;
  std::vector<Job> jobs_;
  std::vector<std::int64_t> numbers_;  // of the jobs, by layer and matrix; kNoJob
};

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_HOST_LORA_H_
