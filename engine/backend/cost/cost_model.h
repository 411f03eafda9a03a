// The time of a whole step of one model on one device (or a tensor-parallel group of equal ones),
// from the operator costs of op_cost.h and the model's real shapes.
#ifndef SERVELAB_BACKEND_COST_COST_MODEL_H_
#define SERVELAB_BACKEND_COST_COST_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/backend/cost/hardware.h"
#include "engine/backend/cost/host_lora_cost.h"
#include "engine/backend/cost/op_cost.h"
#include "engine/model/model_config.h"
#include "engine/serve/cost.h"

namespace servelab {

// One instance per run and thread: step() fills tables as it goes. Deterministic.
class RooflineCostModel : public CostModel {
 public:
  // `tensor_parallel` devices must divide the model's query heads. `lora_targets` is a subset of q,
  // k, v, o, gate, up, down. SpecError otherwise.
  RooflineCostModel(const ModelConfig& model, const HardwareProfile& hardware, int tensor_parallel,
                    const std::vector<std::string>& lora_targets);

  StepCost step(const BatchShape& batch, Exec exec, LoraKernel kernel) const override;
  TimeNs first_step() const override;
  const char* no_host_lora() const override;
  HostLoraCost host_lora(const BatchShape& batch, HostCopy copy) const override;
  TimeNs merge(int rank) const override;
  TimeNs unmerge(int rank) const override { return merge(rank); }
  TimeNs host_to_device(Bytes bytes) const override;
  TimeNs device_to_host(Bytes bytes) const override { return host_to_device(bytes); }
  const char* no_load_path(LoadPath path) const override;
  TimeNs load(LoadPath path, Bytes bytes) const override;
  TimeNs load_model(LoadPath path, Bytes bytes) const override;
  // GPU engines (vLLM, dLoRA 4.3, ours) wait for swapped KV layer by layer.
  int copy_pieces() const override { return model_.layers; }

 private:
  struct LayerTime {
    TimeNs dense = kUnset;
    TimeNs collective = 0;
  };

  LayerTime token_time(std::int64_t tokens) const;  // all layers, from the table
  TimeNs logits_time(std::int64_t sampled) const;   // LM head and sampling, from the table
  LayerTime evaluate_tokens(std::int64_t tokens) const;
  TimeNs evaluate_logits(std::int64_t sampled) const;
  double attention_us(const BatchShape& batch) const;                // one layer
  double lora_us(const BatchShape& batch, LoraKernel kernel) const;  // one layer
  const std::vector<double>& gemm_times(std::int64_t tokens) const;  // us by visit, from the table

  ModelConfig model_;
  HardwareProfile hardware_;
  int tensor_parallel_;
  std::vector<LinearShape> lora_layers_;  // per device
  LoraShape lora_shape_;                  // of one layer, per device
  std::vector<HostVisit> visits_;         // of one layer, per device
  PrefillAttention prefill_;
  DecodeAttention decode_;
  double shared_launch_us_;  // a mixed batch runs prefill and decode in one launch
  mutable std::vector<LayerTime> token_times_;
  mutable std::vector<TimeNs> logits_times_;
  mutable std::vector<std::vector<double>> gemm_times_;  // of visits_, by tokens; empty: not yet
};

// Device memory of one of `tensor_parallel` devices.
struct MemoryNeeds {
  Bytes weights = 0;
  Bytes activations = 0;    // of max_batch_tokens rows
  std::int64_t logits = 0;  // that a step may sample from: of max_batch rows
  Bytes kv_per_token = 0;
};
MemoryNeeds memory_needs(const ModelConfig& model, int tensor_parallel,
                         std::int64_t max_batch_tokens, std::int64_t max_batch);

// One adapter on one device: the halves of A and B that follow their layer's sharding.
Bytes adapter_bytes_per_device(const ModelConfig& model, int tensor_parallel, int rank,
                               const std::vector<std::string>& targets);

// What an engine reserves on one device for a slot before it knows adapters, as vLLM does: A and B
// of each of `targets`; with `vocabulary` also of the embedding (A over the vocabulary) and the LM
// head (B over it), which are not sharded, and rows for 256 tokens that an adapter may add, in both
// of these and in the base's own embedding.
Bytes reserved_slot_bytes(const ModelConfig& model, int tensor_parallel, int rank,
                          const std::vector<std::string>& targets, bool vocabulary);

// The bytes of every weight and of `slots` such slots on one device, one for each tensor that vLLM
// makes of them, in its order. They add up to the weights, the slots and, with `vocabulary`, the LM
// head's rows for added tokens.
std::vector<Bytes> device_tensors(const ModelConfig& model, int tensor_parallel, int slots,
                                  int rank, const std::vector<std::string>& targets,
                                  bool vocabulary);

}  // namespace servelab

#endif  // SERVELAB_BACKEND_COST_COST_MODEL_H_
