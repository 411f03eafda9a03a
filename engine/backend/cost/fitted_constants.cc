#include "engine/backend/cost/fitted_constants.h"

namespace servelab {
namespace {

constexpr double kMaxUs = 1e9;
constexpr double kMaxRate = 1e15;

void add_time(ParamFields& f, const std::string& name, double* target, const char* help) {
  f.add(name, target, help).range(0, kMaxUs);
}

void add_rate(ParamFields& f, const std::string& name, double* target, const char* help) {
  f.add(name, target, help).range(1, kMaxRate);
}

void add_lora(ParamFields& f, const std::string& kernel, FittedLora* lora) {
  add_time(f, kernel + "_fixed_us", &lora->fixed_us, "once, when any row has an adapter");
  add_time(f, kernel + "_row_us", &lora->row_us, "per decode row with an adapter");
  add_time(f, kernel + "_row_rank_us", &lora->row_rank_us, "per unit of the kernel's work");
  add_time(f, kernel + "_adapter_us", &lora->adapter_us, "per distinct adapter");
  add_time(f, kernel + "_adapter_rank_us", &lora->adapter_rank_us,
           "per rank of each distinct adapter");
}

// A table's knots ascend, from 1 or more, and its values never fall.
void check_table(const std::vector<double>& knots, const std::vector<double>& values,
                 const std::string& what, const SourceMark& mark) {
  bool is_good = !knots.empty() && knots.size() == values.size();
  for (std::size_t i = 1; is_good && i < knots.size(); ++i) {
    is_good = knots[i] > knots[i - 1] && values[i] >= values[i - 1];
  }
  if (is_good && values.front() > 0) return;
  throw SpecError(mark, what +
                            " must be two lists of one length, with ascending knots and "
                            "positive values that never fall; calibrate again");
}

}  // namespace

void FittedConstants::fields(ParamFields& f) {
  f.add("model", &model, "the model that was measured").required();
  f.add("dtype", &dtype, "type of weights, activations and KV").required();
  f.add("lora_targets", &lora_targets, "linear layers that the adapters change")
      .one_of({"q", "k", "v", "o", "gate", "up", "down"})
      .required();
  f.add("threads", &threads, "threads of the engine").range(1, 4096).required();
  f.add("machine", &machine, "where it was measured").required();
  f.add("token_knots", &token_knots, "tokens of a step").range(1, 1e6);
  f.add("dense_us", &dense_us, "GEMMs, norms, activations of a step").range(0, kMaxUs);
  f.add("sample_knots", &sample_knots, "sampled rows of a step").range(1, 1e6);
  f.add("logits_us", &logits_us, "LM head and sampling").range(0, kMaxUs);
  add_time(f, "prefill_pair_ns", &prefill_pair_ns, "per (query, key) pair of a prefill");
  add_time(f, "prefill_token_us", &prefill_token_us, "attention per token of a prefill");
  add_time(f, "prefill_key_ns", &prefill_key_ns, "per key that a prefill reads");
  add_time(f, "prefill_request_us", &prefill_request_us, "attention per prompt or chunk");
  add_time(f, "decode_key_ns", &decode_key_ns, "per key that a decode reads");
  add_time(f, "decode_request_us", &decode_request_us, "attention per decoding request");
  for (const auto& row : kernels::kLoraKinds) add_lora(f, row.name, &of(row.kind));
  add_time(f, "lora_slot_us", &lora_slot_us, "per slot for adapters, in steps with any adapter");
  add_time(f, "lora_pair_us", &lora_pair_us, "per row with an adapter and distinct adapter");
  add_time(f, "lora_prefill_token_us", &lora_prefill_token_us, "per prefill row with an adapter");
  add_time(f, "lora_prefill_rank_token_us", &lora_prefill_rank_token_us,
           "per rank of each prefill row");
  add_time(f, "lora_prefill_adapter_rank_us", &lora_prefill_adapter_rank_us,
           "per rank of each prefilled prompt's adapter");
  add_time(f, "k0_us", &k0_us, "scheduling, per step");
  add_time(f, "k1_us", &k1_us, "scheduling, per request of the batch");
  add_time(f, "k2_us", &k2_us, "scheduling, per pending request");
  add_time(f, "k3_us", &k3_us, "scheduling, per pending request and share of adapters in batch");
  add_time(f, "merge_us", &merge_us, "folding an adapter in, before its rank counts");
  add_time(f, "merge_rank_us", &merge_rank_us, "folding an adapter in, per rank");
  add_time(f, "unmerge_us", &unmerge_us, "returning to the base weights");
  add_time(f, "load_latency_us", &load_latency_us, "one load from host memory");
  add_rate(f, "load_bytes_per_s", &load_bytes_per_s, "loads from host memory");
  add_time(f, "disk_latency_us", &disk_latency_us, "one load from files (not used by the twin)");
  add_rate(f, "disk_bytes_per_s", &disk_bytes_per_s, "loads from files (not used by the twin)");
  add_time(f, "swap_out_latency_us", &swap_out_latency_us, "one KV copy to host memory");
  add_rate(f, "swap_out_bytes_per_s", &swap_out_bytes_per_s, "KV copies to host memory");
}

void PlacementConstants::fields(ParamFields& f) {
  add_time(f, "k1_us", &k1_us, "scheduling, per request of the batch");
  add_time(f, "k2_us", &k2_us, "scheduling, per pending request");
  add_time(f, "k3_us", &k3_us, "scheduling, per pending request and share of adapters in batch");
  add_time(f, "k4_us", &k4_us, "backbone, per request of the batch");
  add_time(f, "k5_us", &k5_us, "backbone, per step");
  f.add("k6", &k6, "factor of the backbone, per adapter in the batch").range(0, 1e6);
  f.add("k7", &k7, "factor of the backbone, without adapters").range(0, 1e6);
  f.add("load_ranks", &load_ranks, "ranks whose loads were measured").range(1, 65536);
  f.add("load_us", &load_us, "one load at each of these ranks").range(0, kMaxUs);
}

void check_fitted(const FittedConstants& constants, const SourceMark& mark) {
  check_table(constants.token_knots, constants.dense_us, "token_knots and dense_us", mark);
  check_table(constants.sample_knots, constants.logits_us, "sample_knots and logits_us", mark);
}

void check_placement(const PlacementConstants& constants, const SourceMark& mark) {
  check_table(constants.load_ranks, constants.load_us, "load_ranks and load_us", mark);
  if (constants.k5_us * constants.k7 > 0) return;
  throw SpecError(mark, "k5_us and k7 must be positive; calibrate again");
}

}  // namespace servelab
