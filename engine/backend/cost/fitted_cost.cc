#include "engine/backend/cost/fitted_cost.h"

#include <algorithm>

#include "engine/backend/cost/cost_model.h"
#include "engine/backend/cost/make_cost_model.h"
#include "engine/core/check.h"

namespace servelab {
namespace {

constexpr double kNsPerUs = 1e3;
constexpr double kUsPerSecond = 1e6;

TimeNs to_ns(double us) { return static_cast<TimeNs>(us * kNsPerUs + 0.5); }

double real(std::int64_t count) { return static_cast<double>(count); }

double copy_us(double latency_us, double bytes_per_s, Bytes bytes) {
  return latency_us + (bytes_per_s > 0 ? real(bytes) / bytes_per_s * kUsPerSecond : 0);
}

// Entries 0 .. the last knot; nothing costs nothing.
std::vector<TimeNs> tabulate(const std::vector<double>& knots, const std::vector<double>& values) {
  std::vector<TimeNs> table(static_cast<std::size_t>(knots.back()) + 1);
  for (std::size_t i = 1; i < table.size(); ++i) {
    table[i] = to_ns(interpolate(knots, values, static_cast<double>(i)));
  }
  return table;
}

TimeNs look_up(const std::vector<TimeNs>& table, std::int64_t count,
               const std::vector<double>& knots, const std::vector<double>& values) {
  if (count <= 0) return 0;
  if (count < static_cast<std::int64_t>(table.size()))
    return table[static_cast<std::size_t>(count)];
  return to_ns(interpolate(knots, values, real(count)));
}

double scheduling_us(double k1, double k2, double k3, const BatchShape& batch) {
  const double requests = real(batch.prefill_requests + batch.decode_requests);
  const double share =
      batch.served_adapters > 0 ? real(batch.lora_adapters) / real(batch.served_adapters) : 0;
  return k1 * requests + (k2 + k3 * share) * real(batch.waiting);
}

}  // namespace

double interpolate(const std::vector<double>& knots, const std::vector<double>& values, double x) {
  if (x <= knots.front() || knots.size() == 1) return values.front();
  const auto above = std::upper_bound(knots.begin(), knots.end() - 1, x);
  const auto i = static_cast<std::size_t>(above - knots.begin());
  const double slope = (values[i] - values[i - 1]) / (knots[i] - knots[i - 1]);
  return values[i - 1] + slope * (x - knots[i - 1]);
}

LoraWork lora_work(LoraKernel kernel, const BatchShape& batch) {
  LoraWork work;
  if (kernels::traits(kernel).all_pairs) {
    work.rows = real(batch.lora_tokens);
    work.measure = real(batch.tokens) * real(batch.lora_adapters) * batch.lora_max_rank;
    work.adapters = real(batch.lora_adapters);
    work.adapter_ranks = real(batch.lora_rank_sum);
    return work;
  }
  work.rows = real(batch.lora_decode_rows);
  work.measure = kernels::traits(kernel).padded ? work.rows * batch.lora_max_rank
                                                : real(batch.lora_decode_rank);
  work.adapters = real(std::min(batch.lora_adapters, batch.lora_decode_rows));
  work.adapter_ranks = real(std::min(batch.lora_rank_sum, batch.lora_decode_rank));
  work.prefill_rows = real(batch.lora_tokens - batch.lora_decode_rows);
  if (work.prefill_rows <= 0 || batch.prefill_tokens <= 0) return work;
  work.prefill_rank_rows = real(batch.lora_rank_tokens - batch.lora_decode_rank);
  const double prompts =
      real(batch.prefill_requests) * std::min(1.0, work.prefill_rows / real(batch.prefill_tokens));
  work.prefill_adapter_ranks = work.prefill_rank_rows / work.prefill_rows * prompts;
  return work;
}

FittedCostModel::FittedCostModel(const FittedConstants& constants, const EngineCosts& engine)
    : constants_(constants),
      engine_(engine),
      dense_(tabulate(constants.token_knots, constants.dense_us)),
      logits_(tabulate(constants.sample_knots, constants.logits_us)) {}

double FittedCostModel::lora_us(const BatchShape& batch, LoraKernel kernel) const {
  const FittedLora& lora = constants_.of(kernel);
  const LoraWork work = lora_work(kernel, batch);
  return lora.fixed_us + lora.row_us * work.rows + lora.row_rank_us * work.measure +
         lora.adapter_us * work.adapters + lora.adapter_rank_us * work.adapter_ranks +
         constants_.lora_slot_us * real(batch.adapter_slots) +
         constants_.lora_pair_us * real(batch.lora_tokens) * real(batch.lora_adapters) +
         constants_.lora_prefill_token_us * work.prefill_rows +
         constants_.lora_prefill_rank_token_us * work.prefill_rank_rows +
         constants_.lora_prefill_adapter_rank_us * work.prefill_adapter_ranks;
}

StepCost FittedCostModel::step(const BatchShape& batch, Exec exec, LoraKernel kernel) const {
  const FittedConstants& c = constants_;
  StepCost cost;
  cost.dense = look_up(dense_, batch.tokens, c.token_knots, c.dense_us) +
               look_up(logits_, batch.sampled, c.sample_knots, c.logits_us);
  cost.attention = to_ns(c.prefill_pair_ns / kNsPerUs * real(batch.prefill_pairs) +
                         c.prefill_token_us * real(batch.prefill_tokens) +
                         c.prefill_key_ns / kNsPerUs * real(batch.prefill_context) +
                         c.prefill_request_us * real(batch.prefill_requests) +
                         c.decode_key_ns / kNsPerUs * real(batch.decode_context) +
                         c.decode_request_us * real(batch.decode_requests));
  if (exec == Exec::kUnmerged && batch.lora_tokens > 0) cost.lora = to_ns(lora_us(batch, kernel));
  cost.host = to_ns(c.k0_us + scheduling_us(c.k1_us, c.k2_us, c.k3_us, batch));
  return cost;
}

TimeNs FittedCostModel::first_step() const { return to_ns(engine_.first_step_us); }

TimeNs FittedCostModel::load(LoadPath /*path*/, Bytes bytes) const {
  return to_ns(engine_.load_us) + host_to_device(bytes);
}

TimeNs FittedCostModel::merge(int rank) const {
  return to_ns(constants_.merge_us + constants_.merge_rank_us * rank);
}

TimeNs FittedCostModel::unmerge(int /*rank*/) const { return to_ns(constants_.unmerge_us); }

TimeNs FittedCostModel::host_to_device(Bytes bytes) const {
  return to_ns(copy_us(constants_.load_latency_us, constants_.load_bytes_per_s, bytes));
}

TimeNs FittedCostModel::device_to_host(Bytes bytes) const {
  return to_ns(copy_us(constants_.swap_out_latency_us, constants_.swap_out_bytes_per_s, bytes));
}

PlacementCostModel::PlacementCostModel(const PlacementConstants& constants,
                                       const FittedConstants& otherwise, Bytes bytes_per_rank)
    : constants_(constants), otherwise_(otherwise), bytes_per_rank_(real(bytes_per_rank)) {}

StepCost PlacementCostModel::step(const BatchShape& batch, Exec /*exec*/,
                                  LoraKernel /*kernel*/) const {
  const PlacementConstants& c = constants_;
  const double requests = real(batch.prefill_requests + batch.decode_requests);
  const double backbone = c.k4_us * requests + c.k5_us;
  const double factor = c.k6 * real(batch.lora_adapters) + c.k7;
  StepCost cost;
  cost.dense = to_ns(backbone);
  // The paper does not tell parts apart: what its factor adds is recorded as LoRA, and a factor
  // below one (K7 is fitted) shortens the backbone.
  cost.lora = to_ns(std::max(0.0, backbone * (factor - 1)));
  if (factor < 1) cost.dense = to_ns(backbone * factor);
  cost.host = to_ns(scheduling_us(c.k1_us, c.k2_us, c.k3_us, batch));
  return cost;
}

TimeNs PlacementCostModel::host_to_device(Bytes bytes) const {
  const double rank = real(bytes) / bytes_per_rank_;
  return to_ns(interpolate(constants_.load_ranks, constants_.load_us, rank));
}

namespace {

std::string listed(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

// A fitted profile tells of nothing but what it was measured on.
void check_calibrated_for(const ModelConfig& model, const HardwareProfile& hardware,
                          int tensor_parallel, const std::vector<std::string>& lora_targets) {
  const FittedConstants& fitted = hardware.fitted;
  const std::string profile = "hardware profile '" + hardware.name + "' was calibrated for ";
  if (fitted.model != model.name) {
    throw SpecError(profile + "model '" + fitted.model + "', not for '" + model.name +
                    "'; run servelab calibrate --model with that one");
  }
  if (listed(fitted.lora_targets) != listed(lora_targets)) {
    throw SpecError(profile + "LoRA targets " + listed(fitted.lora_targets) + ", not for " +
                    listed(lora_targets) + "; run servelab calibrate --lora " +
                    listed(lora_targets) + ", or change lora.targets");
  }
  if (tensor_parallel != 1) {
    throw SpecError(profile + "one device; cluster.tensor_parallel must be 1");
  }
}

ProfileSection chunk_rows(HardwareProfile* hw) {
  ChunkRowsOnly only{&hw->host_lora};
  return {"host_lora", &only, hw->host_lora.chunk_rows == 0};
}

class Fitted : public CostModelKind {
 public:
  std::vector<ProfileSection> sections(HardwareProfile* hw) override {
    return {{"fitted", &hw->fitted}, chunk_rows(hw)};
  }
  void check(const HardwareProfile& hardware, const ConfigNode& file) const override {
    check_fitted(hardware.fitted, file.find("fitted")->mark);
  }
  std::unique_ptr<CostModel> make(const ModelConfig& model, const HardwareProfile& hardware,
                                  int tensor_parallel,
                                  const std::vector<std::string>& lora_targets) const override {
    check_calibrated_for(model, hardware, tensor_parallel, lora_targets);
    return std::make_unique<FittedCostModel>(hardware.fitted, hardware.engine_costs);
  }
};

class Placement : public CostModelKind {
 public:
  std::vector<ProfileSection> sections(HardwareProfile* hw) override {
    return {{"fitted", &hw->fitted}, {"placement", &constants_}, chunk_rows(hw)};
  }
  void check(const HardwareProfile& hardware, const ConfigNode& file) const override {
    check_fitted(hardware.fitted, file.find("fitted")->mark);
    check_placement(constants_, file.find("placement")->mark);
  }
  std::unique_ptr<CostModel> make(const ModelConfig& model, const HardwareProfile& hardware,
                                  int tensor_parallel,
                                  const std::vector<std::string>& lora_targets) const override {
    check_calibrated_for(model, hardware, tensor_parallel, lora_targets);
    return std::make_unique<PlacementCostModel>(
        constants_, hardware.fitted,
        adapter_bytes_per_device(model, tensor_parallel, 1, lora_targets));
  }

 private:
  PlacementConstants constants_;
};

}  // namespace
}  // namespace servelab

SERVELAB_COST_MODEL("fitted", Fitted)
SERVELAB_COST_MODEL("placement", Placement)
