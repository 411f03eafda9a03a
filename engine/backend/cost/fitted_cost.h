// Cost models whose constants were measured on a real engine by `servelab calibrate`, for one model
// on one machine. FittedCostModel adds up parts that each follow from what the engine computes;
// PlacementCostModel is the placement paper's own (Equation 1), to compare with.
#ifndef SERVELAB_BACKEND_COST_FITTED_COST_H_
#define SERVELAB_BACKEND_COST_FITTED_COST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/backend/cost/hardware.h"
#include "engine/model/model_config.h"
#include "engine/serve/cost.h"

namespace servelab {

// A function given at ascending knots: constant before the first, linear between them, and with the
// last slope beyond the last.
double interpolate(const std::vector<double>& knots, const std::vector<double>& values, double x);

// The LoRA work of a step as FittedLora charges it. Prefills run as SGMV segments beside any kernel
// but einsum, which takes every row alike.
struct LoraWork {
  double rows = 0;           // decode rows with an adapter
  double measure = 0;        // D of FittedLora
  double adapters = 0;       // distinct ones
  double adapter_ranks = 0;  // ranks of the distinct adapters
  double prefill_rows = 0;
  double prefill_rank_rows = 0;      // ranks of those rows
  double prefill_adapter_ranks = 0;  // ranks over the prompts, as far as the aggregates tell
};
LoraWork lora_work(LoraKernel kernel, const BatchShape& batch);

// Immutable after construction.
class FittedCostModel final : public CostModel {
 public:
  explicit FittedCostModel(const FittedConstants& constants, const EngineCosts& engine = {});

  StepCost step(const BatchShape& batch, Exec exec, LoraKernel kernel) const override;
  TimeNs merge(int rank) const override;
  TimeNs unmerge(int rank) const override;
  TimeNs first_step() const override;
  TimeNs host_to_device(Bytes bytes) const override;
  TimeNs load(LoadPath path, Bytes bytes) const override;
  TimeNs device_to_host(Bytes bytes) const override;

 private:
  double lora_us(const BatchShape& batch, LoraKernel kernel) const;

  FittedConstants constants_;
  EngineCosts engine_;
  std::vector<TimeNs> dense_;   // by tokens, from 0
  std::vector<TimeNs> logits_;  // by sampled rows, from 0
};

class PlacementCostModel final : public CostModel {
 public:
  // Loads are by rank, and `bytes_per_rank` says what a rank weighs. What the paper has no term for
  // (merges, KV copies) is as in `otherwise`.
  PlacementCostModel(const PlacementConstants& constants, const FittedConstants& otherwise,
                     Bytes bytes_per_rank);

  StepCost step(const BatchShape& batch, Exec exec, LoraKernel kernel) const override;
  TimeNs merge(int rank) const override { return otherwise_.merge(rank); }
  TimeNs unmerge(int rank) const override { return otherwise_.unmerge(rank); }
  TimeNs host_to_device(Bytes bytes) const override;
  TimeNs device_to_host(Bytes bytes) const override { return otherwise_.device_to_host(bytes); }

 private:
  PlacementConstants constants_;
  FittedCostModel otherwise_;
  double bytes_per_rank_;
};

}  // namespace servelab

#endif  // SERVELAB_BACKEND_COST_FITTED_COST_H_
