// What `servelab calibrate` measured on one machine for one model: the constants of the two fitted
// cost models (fitted_cost.h), as sections of a hardware profile. Times are microseconds, rates per
// second; every constant is >= 0, so that a bigger step is never cheaper.
#ifndef SERVELAB_BACKEND_COST_FITTED_CONSTANTS_H_
#define SERVELAB_BACKEND_COST_FITTED_CONSTANTS_H_

#include <array>
#include <string>
#include <vector>

#include "engine/core/check.h"
#include "engine/core/params.h"
#include "kernels/lora_kind.h"

namespace servelab {

// One LoRA kernel over the decode rows of a step, all layers. D is its measure of work: the sum of
// the rows' ranks; rows x the batch's largest rank where they are padded (bgmv); all rows of the
// step x distinct adapters x the largest rank where every adapter goes over all of them (einsum).
struct FittedLora {
  double fixed_us = 0;         // once, when any row has an adapter: the jump from 0 to 1
  double row_us = 0;           // per decode row with an adapter
  double row_rank_us = 0;      // per D: CaraServe's alpha
  double adapter_us = 0;       // per distinct adapter
  double adapter_rank_us = 0;  // per rank of each distinct adapter: its weights, read once
};

// Section `fitted`.
struct FittedConstants {
  std::string model, dtype, machine;
  std::vector<std::string> lora_targets;
  int threads = 0;

  // GEMMs, norms, activations: by tokens of the step; LM head and sampling: by sampled rows.
  // Linear between knots, beyond the last one with its slope.
  std::vector<double> token_knots, dense_us;
  std::vector<double> sample_knots, logits_us;

  double prefill_pair_ns = 0;     // (query, key) pair of a prefill, all layers
  double prefill_token_us = 0;    // token of a prefill
  double prefill_key_ns = 0;      // key read by a prefill, earlier context included
  double prefill_request_us = 0;  // prompt, or chunk of one
  double decode_key_ns = 0;       // key read by a decode
  double decode_request_us = 0;   // decoding request

  std::array<FittedLora, kernels::kLoraKinds.size()> lora;
  double lora_slot_us = 0;                  // per slot for adapters, in steps with any
  double lora_pair_us = 0;                  // per row with an adapter and distinct adapter
  double lora_prefill_token_us = 0;         // per prefill row with an adapter
  double lora_prefill_rank_token_us = 0;    // per rank of each such row
  double lora_prefill_adapter_rank_us = 0;  // per rank of each prefilled prompt's adapter

  // Scheduling, as in the placement paper's Lat_sched, plus what any step costs.
  double k0_us = 0;  // per step
  double k1_us = 0;  // per request of the batch
  double k2_us = 0;  // per pending request
  double k3_us = 0;  // per pending request and share of the served adapters in the batch

  double merge_us = 0, merge_rank_us = 0, unmerge_us = 0;
  double load_latency_us = 0, load_bytes_per_s = 0;  // host memory to the device's layout
  double disk_latency_us = 0, disk_bytes_per_s = 0;  // the same from files: for figures only
  double swap_out_latency_us = 0, swap_out_bytes_per_s = 0;

  FittedLora& of(kernels::LoraKind kernel) { return lora[static_cast<std::size_t>(kernel)]; }
  const FittedLora& of(kernels::LoraKind kernel) const {
    return lora[static_cast<std::size_t>(kernel)];
  }
  void fields(ParamFields& f);
};

// Section `placement`: the model of the placement paper's Equation 1. B requests in the batch, A_B
// adapters in it, A served, R_P pending:
//   step = (K4 B + K5) (K6 A_B + K7) + K1 B + K2 R_P + K3 R_P A_B / A;  prefills cost nothing.
struct PlacementConstants {
  double k1_us = 0, k2_us = 0, k3_us = 0;
  double k4_us = 0, k5_us = 0;
  double k6 = 0, k7 = 0;
  std::vector<double> load_ranks, load_us;  // one load, by rank; linear in between

  void fields(ParamFields& f);
};

// Throws SpecError at `mark` when the tables of a profile cannot be used.
void check_fitted(const FittedConstants& constants, const SourceMark& mark);
void check_placement(const PlacementConstants& constants, const SourceMark& mark);

}  // namespace servelab

#endif  // SERVELAB_BACKEND_COST_FITTED_CONSTANTS_H_
