// How the slices of a step lie in the batch, written into pinned memory that one copy brings to the
// device: decodes first, then prefills, each by adapter in order of first appearance: those on
// the device, those that the host computes, and rows of the base model last. Padding rows of a
// bucket are marked so that no kernel computes for them.
#ifndef SERVELAB_BACKEND_CUDA_STEP_INPUT_H_
#define SERVELAB_BACKEND_CUDA_STEP_INPUT_H_

#include <span>
#include <vector>

#include "engine/backend/cuda/adapter_store.h"
#include "engine/backend/cuda/host_lora.h"
#include "kernels/cuda/attention.h"

namespace servelab::cuda {

// One array in pinned host memory and its copy on the device.
template <class T>
struct Mirrored {
  T* host = nullptr;
  T* device = nullptr;
};

// Rows [row, row + batch.rows) under one LoRA kernel.
struct LoraPart {
  int row = 0;
  kernels::LoraKind kind = kernels::LoraKind::kSgmv;
  kernels::cuda::LoraBatch batch;
};

// A step as the kernels see it: counts include padding.
struct StepShape {
  int rows = 0;
  int decodes = 0;   // sequences of one row each, the first rows
  int prefills = 0;  // sequences
  int sampled = 0;
  int decode_length = 0;  // bounds, for the attention kernels
  int prefill_length = 0;
  int prefill_queries = 0;
  int table_stride = 0;
  int lora_parts = 0;
  LoraPart lora[2];
};

class StepInput {
 public:
  // Bounds of any step, padding included.
  static int most_sequences(const DeviceLimits& limits);
  static int most_rows(const DeviceLimits& limits);
  static int most_positions(const ModelConfig& model, const DeviceLimits& limits);
  static std::size_t bytes(const ModelConfig& model, const DeviceLimits& limits);

  // bytes() of each.
  StepInput(const ModelConfig& model, const DeviceLimits& limits, kernels::DType type,
            std::byte* host, std::byte* device);

  // Lays the job's step out. `adapters`: by sequence, null: the base model; empty: no LoRA beside
  // the weights. With `bucketed` a step of decodes that all sample is padded to a power of two, and
  // so is the bound of their lengths.
  const StepShape& lay_out(const DeviceJob& job, std::span<const DeviceAdapter* const> adapters,
                           bool bucketed);

  // The rows that the host computes become the device's: `adapters` by the order of
  // host_adapters(). Rows stay where they are; only `slots` and what the LoRA kernels read change.
  const StepShape& take_over(std::span<const CudaAdapter* const> adapters, LoraKernel kernel);

  // Whether a step is of the kind that can be padded.
  static bool only_decodes(const std::vector<Sequence>& sequences);

  std::size_t used_bytes() const { return used_bytes_; }
  std::byte* device() const { return reinterpret_cast<std::byte*>(uniforms.device); }
  // The distinct adapters of the step that are on the device.
  const std::vector<const CudaAdapter*>& adapters() const { return adapters_; }
  const std::vector<const HostAdapter*>& host_adapters() const { return host_adapters_; }
  // Rows that the host computes LoRA for: to the device they are the base model's.
  const HostRows& host() const { return host_; }

  Mirrored<double> uniforms;                                 // by sample
  Mirrored<std::int32_t> ids, positions, cache_rows, slots;  // by row
  Mirrored<std::int32_t> contexts;                           // by sequence
  Mirrored<std::int32_t> decode_begin, prefill_begin;        // rows, from the first of each kind
  Mirrored<std::int32_t> sample_rows;
  Mirrored<std::int32_t> tables;  // [sequence][table_stride]

 private:
  struct Place {       // of a sequence
    int sequence = 0;  // in the job
    int row = 0;
    // Index into adapters_, behind them into host_adapters_, behind both: base model.
    std::size_t adapter = 0;
    bool prefill = false;
  };
  void order(const DeviceJob& job, std::span<const DeviceAdapter* const> adapters);
  void write_slots(const Place& at, int tokens);
  void write_sequence(const Sequence& sequence, const Place& at, int index);
  void lay_out_host(const DeviceJob& job);
  void pad(int bucket);
  void lay_out_lora(LoraKernel kernel, bool bucketed);
  // Segments of rows of one adapter from `row` on; returns the rows that they cover.
  int segments_of(int first_row, int rows, Mirrored<std::int32_t> begin,
                  Mirrored<std::int32_t> segment_slots, kernels::cuda::LoraBatch* batch) const;
  void lay_out_samples(const DeviceJob& job);

  const int block_tokens_;
  const int max_positions_;
  const kernels::DType type_;
  Mirrored<std::int32_t> segment_begin_[2], segment_slots_[2], distinct_;
  std::size_t tables_offset_ = 0;
  std::size_t used_bytes_ = 0;
  std::vector<const CudaAdapter*> adapters_;
  std::vector<const HostAdapter*> host_adapters_;
  HostRows host_;
  std::vector<Place> places_;  // in the batch's order
  std::vector<int> last_row_;  // by sequence
  StepShape shape_;
};

}  // namespace servelab::cuda

#endif  // SERVELAB_BACKEND_CUDA_STEP_INPUT_H_
