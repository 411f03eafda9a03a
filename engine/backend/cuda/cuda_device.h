// The CUDA engine's device: one arena of memory planned at the start, and the forward pass over a
// mixed batch as a row of kernels on one stream. Steps of decodes run as recorded graphs. Adapters
// and swapped contexts come and go on streams of their own; a step waits for them layer by layer.
#ifndef SERVELAB_BACKEND_CUDA_CUDA_DEVICE_H_
#define SERVELAB_BACKEND_CUDA_CUDA_DEVICE_H_

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "engine/backend/cuda/adapter_store.h"
#include "engine/backend/cuda/collective.h"
#include "engine/backend/cuda/device_weights.h"
#include "engine/backend/cuda/host_lora.h"
#include "engine/backend/cuda/kv_store.h"
#include "engine/backend/cuda/step_graphs.h"
#include "engine/backend/cuda/step_input.h"
#include "engine/backend/cuda/step_stream.h"
#include "engine/backend/cuda/step_timer.h"
#include "engine/model/shard.h"
#include "kernels/cuda/dense.h"

namespace servelab::cuda {

// Which part of the model a device computes, and with whom; null for one rank.
struct RankSeat {
  Shard shard;
  std::shared_ptr<Collective> collective;
};

class CudaDevice : public LocalDevice {
 public:
  // Throws SpecError when the model's shapes are not those of the kernels, or memory is short. Of
  // several ranks each gets its own part of adapters (shard_adapter) and makes the same calls.
  CudaDevice(const ModelConfig& model, const ModelWeights& weights, const DevicePlan& plan,
             const RankSeat& seat = {});
  ~CudaDevice() override;

  const char* unsupported(const StepPlan& plan) const override;

  // What the last job was: tests ask whether a graph ran.
  bool ran_graph() const { return ran_graph_; }

 private:
  void enter_thread() override;
  void merge(const DeviceAdapter& adapter) override;
  void unmerge() override;
  HostMemory copy_out(const KvMove& move) override;
  void copy_in(const KvMove& move, const std::byte* host) override;
  void forward(const DeviceJob& job, std::span<const DeviceAdapter* const> adapters,
               const DeviceAdapter* folded, DeviceResult* result) override;
  std::unique_ptr<DeviceAdapter> pack(const Load& load, const LoraWeights& weights) override;
  std::unique_ptr<DeviceAdapter> pack_on_host(const LoraWeights& weights) override;
  void prepare(const Load& load, std::shared_ptr<const LoraWeights> weights) override;

  // Memory between kernels.
  struct Activations {
    float* x = nullptr;          // [rows, hidden]: the residual stream
    void* h = nullptr;           // [rows, hidden]: normalised
    void* y = nullptr;           // [rows, widest fused output]
    void* a = nullptr;           // [rows, max(q, ffn)]: attention's output, the gated product
    float* sampled_x = nullptr;  // [samples, hidden]
    void* sampled_h = nullptr;   // [samples, hidden]
    float* logits = nullptr;     // [samples, vocab]
    std::int32_t* tokens = nullptr;
  };
  struct Workspaces {
    std::size_t lora = 0, attention = 0;
  };
  // Places for copies of all layers.
  struct FoldedMemory {
    std::mutex mutex;
    std::vector<std::byte*> free;
  };

  void check_shapes() const;
  void make_plan(MemoryPlan* plan);
  std::size_t layers_bytes() const;  // of one copy of all layers' matrices
  void plan_workspaces(MemoryPlan* plan);
  void allocate();
  void fold(const CudaAdapter& adapter, int layer, Fused which, void* out, cudaStream_t stream);
  void take_merge_memory();
  std::shared_ptr<std::byte> take_folded_memory();
  std::unique_ptr<CudaAdapter> fold_all(const LoraWeights& weights);
  HostLora* host_lora();

  void pass(const StepShape& shape, const SamplingOptions& sampling, StepTimer* timer);
  void wait_for_layer(int layer);
  void list_hosted(const DeviceJob& job, std::span<const DeviceAdapter* const> adapters);
  bool take_over();
  bool all_ranks_say(bool yes);
  void send_input();
  void wait_for_all();
  void attention_block(int layer, const StepShape& shape, StepTimer* timer);
  void attention(int layer, const StepShape& shape);
  void ffn_block(int layer, const StepShape& shape, StepTimer* timer);
  void head(const StepShape& shape, const SamplingOptions& sampling);
  void choose(const StepShape& shape, const SamplingOptions& sampling);
  void add_to_residual(int layer, Fused which, const StepShape& shape, StepTimer* timer);
  void linear(int layer, Fused which, const void* x, const StepShape& shape, kernels::DType y_type,
              void* y, bool add, StepTimer* timer);
  void multiply(int layer, Fused which, const void* x, const StepShape& shape,
                kernels::DType y_type, void* y, bool add);
  void lora(int layer, Fused which, const void* x, const StepShape& shape, kernels::DType y_type,
            void* y);
  void launch(const StepShape& shape, const SamplingOptions& sampling, bool bucketed);
  const void* matrix(int layer, Fused which) const;
  bool adapters_arrived() const;
  StepGraphs::Key graph_key(const StepShape& shape, const SamplingOptions& sampling) const;
  void measure_again(const StepShape& shape, const SamplingOptions& sampling, StepParts* parts);

  const RankSeat seat_;
  const ModelConfig part_;  // this rank's part of the model
  const DevicePlan plan_;
  const Shapes shapes_;

  PinnedPool pinned_;
  StepStream stream_;
  Workspaces workspace_bytes_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<DeviceWeights> weights_;
  std::shared_ptr<AdapterStore> adapters_;
  KvStore kv_;
  std::mutex host_lora_mutex_;           // while it is made
  std::unique_ptr<HostLora> host_lora_;  // by the first adapter for it
  Activations act_;
  void* dense_workspace_ = nullptr;
  void* lora_workspace_ = nullptr;
  void* attention_workspace_ = nullptr;
  std::int32_t* host_arrived_ = nullptr;  // HostLora's
  float* votes_ = nullptr;                // a number of each rank, or of all; null for one rank
  std::unique_ptr<kernels::cuda::Dense> dense_;

  std::vector<Matrices> merged_;                              // by layer; null: not reserved
  std::vector<std::array<bool, kFusedMatrices>> use_merged_;  // by layer
  std::map<std::vector<std::array<bool, kFusedMatrices>>, std::uint64_t> merged_sets_;
  std::uint64_t merged_set_ = 0;  // names the set in use_merged_; 0: none

  std::shared_ptr<FoldedMemory> folded_memory_;
  const std::vector<Matrices>* folded_ = nullptr;  // of this step, where it runs on such a copy

  HostMemory host_input_;
  std::unique_ptr<StepInput> input_;
  HostMemory host_tokens_;
  HostMemory host_votes_;
  StepGraphs graphs_;
  StepTimer timer_;
  std::vector<AdapterId> hosted_;  // of this step, by StepInput::host_adapters()
  bool may_take_over_ = false;     // the device goes on with them once all have arrived
  LoraKernel kernel_ = LoraKernel::kMbgmv;
  int host_layers_ = 0;
  bool measure_ = false;    // of the latest job: DeviceJob::measure_parts
  bool may_replay_ = true;  // of the latest job: DeviceJob::may_replay
  bool ran_graph_ = false;
};

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_CUDA_DEVICE_H_
