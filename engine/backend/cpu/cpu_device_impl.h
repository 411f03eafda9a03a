// Inside of CpuDevice: its memory, and the forward pass as phases between barriers.
#ifndef SERVELAB_BACKEND_CPU_CPU_DEVICE_IMPL_H_
#define SERVELAB_BACKEND_CPU_CPU_DEVICE_IMPL_H_

#include <array>
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/backend/cpu/cpu_device.h"
#include "engine/backend/device/adapter_storage.h"
#include "engine/backend/device/buffer.h"
#include "engine/backend/device/rope_table.h"
#include "engine/backend/device/shapes.h"
#include "engine/backend/device/thread_team.h"
#include "engine/backend/host_lora/team.h"

namespace servelab {

using FusedLinears = std::array<std::unique_ptr<kernels::Linear>, kFusedMatrices>;

struct FoldedLayers {
  std::vector<FusedLinears> layers;
};

struct LayerWeights {
  FusedLinears base;
  FusedLinears merged;  // only where an adapter was merged
  std::array<bool, kFusedMatrices> use_merged = {};
  std::vector<float> attention_norm;
  std::vector<float> ffn_norm;
  std::vector<float> qkv_bias;  // empty without bias
  kernels::KvCache cache;
};

// A run of rows of the batch that belong to one adapter.
struct Segment {
  int row = 0;
  int rows = 0;
  const CpuAdapter* adapter = nullptr;
};

class CpuDevice::Impl {
 public:
  Impl(const ModelConfig& model, const ModelWeights& weights, const CpuDeviceOptions& options);

  // The device's copy of an adapter, once it has arrived; null before.
  using Arrived = std::function<const DeviceAdapter*(AdapterId)>;
  void run(const DeviceJob& job, std::span<const DeviceAdapter* const> adapters,
           const FoldedLayers* folded, const Arrived& arrived, DeviceResult* result);
  void merge(const CpuAdapter& adapter);
  void unmerge();
  // Of adapters that the host computes with.
  const std::shared_ptr<AdapterStorage>& host_storage() const {
    return workers_ == nullptr ? adapter_storage_ : workers_->adapters();
  }
  std::unique_ptr<FoldedLayers> fold_all(const CpuAdapter& adapter) const;
  void reserve(std::span<const LinearLayer> targets);
  void copy_context(const KvMove& move, std::byte* host) const;
  Bytes kv_bytes_per_token() const;

  const ModelConfig model_;
  const Shapes shapes_{model_};
  const CpuDeviceOptions options_;
  const std::shared_ptr<AdapterStorage> adapter_storage_ = std::make_shared<AdapterStorage>();
  const kernels::Ops& ops_;
  ThreadTeam team_;

 private:
  struct Row {  // of the slices, in the order in which they lie in the batch
    int slice = 0;
    int row = 0;  // first row of the slice
  };
  // Which rows, columns and heads a member works on in a phase that any of them could share.
  struct Share {
    int row_begin = 0, row_end = 0;
    int column_begin = 0, column_end = 0;
  };

  void pack_layers(const ModelWeights& weights);
  void reserve(Fused which, LayerWeights* layer);
  std::unique_ptr<kernels::Linear> like(const kernels::Linear& other) const;
  void fold(const CpuAdapter& adapter, int layer, Fused which, int part, std::vector<float>* rows,
            kernels::Linear* out) const;
  void pack_fused(const std::vector<Tensor>& sources, kernels::Linear* linear);
  void allocate();
  void start_workers(std::size_t h_row);
  void check_memory() const;

  void lay_out(const DeviceJob& job, std::span<const DeviceAdapter* const> adapters, bool unmerged);
  void prepare_lora();
  void list_hosted(const DeviceJob& job, std::span<const DeviceAdapter* const> adapters);
  void take_over(int layer);
  void open_round(int layer_begin);
  void reopen_round(int layer);
  void close_round(DeviceResult* result);
  void post_host(int layer, Fused which);
  void await_host(int layer, Fused which);
  void add_host(LinearLayer target, int layer, float* y, std::int64_t ldy, const Share& share);
  int& job_of(int layer, Fused which);
  void forward(int member, std::span<const Sequence> slices);
  void embed(int member, std::span<const Sequence> slices);
  void attention_phase(int member, int layer, std::span<const Sequence> slices);
  void rotate_and_write(int layer, const Share& share, std::span<const Sequence> slices);
  void norm_rows(int member, const std::vector<float>& weight);
  void swiglu_phase(int member, int layer);
  void head(int member);
  void choose(int member, std::span<const Sequence> slices);

  // Both halves of LoRA for layers that share one input; `y` is where the first of them begins.
  void shrink(int member, int layer, std::span<const LinearLayer> targets);
  void expand(int member, int layer, LinearLayer target, int index, float* y, std::int64_t ldy,
              const Share& share);
  kernels::LoraBatch batch_of(int layer, LinearLayer target, const std::vector<Segment>& segments,
                              kernels::LoraKind kind, std::vector<kernels::LoraRows>* rows) const;
  void multiply(int member, int layer, Fused which, float* y, std::int64_t ldy,
                kernels::Store store);

  // An equal share of all rows when there are enough of them, else of `units` columns.
  Share share_of(int member, int units) const;
  float* t_of(int index) const;

  std::vector<LayerWeights> layers_;
  Tensor embedding_;
  std::vector<float> final_norm_;
  std::unique_ptr<kernels::Linear> lm_head_;
  RopeTable rope_;

  Buffer kv_;
  Buffer x_;                     // f32 [rows, hidden]: the residual stream
  Buffer own_h_;                 // h_, where no worker is to see it
  std::byte* h_ = nullptr;       // type [rows, widest input]: input of the next linear layer
  Buffer y_;                     // f32 [rows, widest fused output]
  Buffer t_;                     // f32 [3 targets][rows, widest rank]: between shrink and expand
  Buffer logits_;                // f32 [max_batch, vocab]
  std::vector<Buffer> scratch_;  // per member: attention, sampling, one-hot einsum
  std::size_t scratch_attention_ = 0;
  int widest_input_ = 0;
  int widest_output_ = 0;
  int t_stride_ = 0;
  std::size_t t_floats_ = 0;

  // The batch at hand.
  int rows_ = 0;
  int sampled_rows_ = 0;
  std::vector<Row> order_;
  std::vector<std::int32_t> positions_;
  std::vector<Segment> decodes_;   // segments under the plan's kernel
  std::vector<Segment> prefills_;  // segments of several rows, always SGMV
  kernels::LoraKind kind_ = kernels::LoraKind::kSgmv;
  int lora_width_ = 0;                    // largest rank of the batch; 0: nothing to do
  const FoldedLayers* folded_ = nullptr;  // of this step, where it runs on such a copy
  struct Hosted {                         // an adapter of slices with LoraSite::kHost
    AdapterId id{};
    const CpuAdapter* adapter = nullptr;
  };
  std::vector<Hosted> hosted_;                // less those that the device has taken over
  std::unique_ptr<host_lora::Team> workers_;  // who computes those; null: this team does
  std::vector<Segment> at_workers_;           // segments of theirs, in no list above
  std::vector<host_lora::Job> jobs_;          // of the round, and their numbers by layer and matrix
  std::vector<int> job_of_;                   // -1: none
  bool round_open_ = false;
  std::exception_ptr host_failure_;  // what a member that may not throw has met
  bool may_take_over_ = false;
  int host_layers_ = 0;
  const Arrived* arrived_ = nullptr;
  const SamplingOptions* sampling_ = nullptr;
  std::vector<std::int32_t>* sampled_ = nullptr;
  std::vector<int> sampling_slices_;                       // indices into slices, in slice order
  std::vector<int> sampling_rows_;                         // the row of each
  std::unique_ptr<std::atomic<int>[]> next_task_;          // per layer
  std::vector<std::vector<kernels::LoraRows>> lora_rows_;  // per member, reused
  StepParts parts_;                                        // of member 0
  bool lora_ = false;                                      // some row has an adapter to compute
};

}  // namespace servelab

#endif  // SERVELAB_BACKEND_CPU_CPU_DEVICE_IMPL_H_
