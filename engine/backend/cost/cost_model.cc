#include "engine/backend/cost/cost_model.h"

#include <algorithm>
#include <iterator>

#include "engine/backend/cost/make_cost_model.h"
#include "engine/core/check.h"

namespace servelab {
namespace {

constexpr double kNsPerUs = 1e3;
constexpr std::int64_t kTableTokens = 1 << 16;  // larger steps are computed anew each time
constexpr int kAllReducesPerLayer = 2;          // after o and after down
constexpr std::int64_t kLogitBytes = 4;         // logits are sampled in fp32
constexpr Bytes kAddedTokens = 256;             // vLLM's lora_extra_vocab_size

// Targets whose weights are one matrix.
const std::vector<std::vector<std::string>> kFusedTargets = {
    {"q", "k", "v"}, {"o"}, {"gate", "up"}, {"down"}};

TimeNs to_ns(double us) { return static_cast<TimeNs>(us * kNsPerUs + 0.5); }

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

int checked_parallel(const ModelConfig& model, int tensor_parallel) {
  if (tensor_parallel < 1 || model.heads % tensor_parallel != 0) {
    throw SpecError("tensor parallel degree " + std::to_string(tensor_parallel) +
                    " does not divide the " + std::to_string(model.heads) + " heads of " +
                    model.name);
  }
  return tensor_parallel;
}

// Fewer KV heads than devices: each device keeps a copy of one.
int kv_heads_per_device(const ModelConfig& model, int tensor_parallel) {
  return static_cast<int>(divide_up(model.kv_heads, tensor_parallel));
}

bool splits_input(const std::string& target) { return target == "o" || target == "down"; }

// The shard of one linear layer on one device: o and down by their input, the others by output.
LinearShape shard_shape(const ModelConfig& model, const std::string& target, int tensor_parallel) {
  LinearShape shape = linear_shape(model, target);
  if (target == "k" || target == "v") {
    shape.out = kv_heads_per_device(model, tensor_parallel) * model.head_dim;
  } else if (splits_input(target)) {
    shape.in = static_cast<int>(divide_up(shape.in, tensor_parallel));
  } else {
    shape.out = static_cast<int>(divide_up(shape.out, tensor_parallel));
  }
  return shape;
}

std::vector<LinearShape> shards(const ModelConfig& model, int tensor_parallel,
                                const std::vector<std::string>& targets) {
  std::vector<LinearShape> shapes;
  for (const std::string& target : targets) {
    shapes.push_back(shard_shape(model, target, tensor_parallel));
  }
  return shapes;
}

// Targets that share one input run as one packed shrink + expand.
LoraShape lora_shape(const std::vector<std::string>& targets,
                     const std::vector<LinearShape>& shapes) {
  LoraShape sum;
  bool attention_input = false;
  bool ffn_input = false;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const std::string& target = targets[i];
    sum.width += shapes[i].in + shapes[i].out;
    sum.activation += shapes[i].in + 2.0 * shapes[i].out;
    if (splits_input(target)) {
      sum.pairs += 1;
    } else if (target == "gate" || target == "up") {
      ffn_input = true;
    } else {
      attention_input = true;
    }
  }
  sum.pairs += (attention_input ? 1 : 0) + (ffn_input ? 1 : 0);
  return sum;
}

// Targets that share one input leave for the host together; the device then has their fused GEMM.
std::vector<HostVisit> host_visits(const ModelConfig& model, int tensor_parallel,
                                   const std::vector<std::string>& targets) {
  std::vector<HostVisit> visits;
  for (const std::vector<std::string>& fused : kFusedTargets) {
    HostVisit visit;
    for (const std::string& target : fused) {
      const LinearShape shape = shard_shape(model, target, tensor_parallel);
      visit.device_out += shape.out;
      if (std::find(targets.begin(), targets.end(), target) == targets.end()) continue;
      visit.targets += 1;
      visit.in = shape.in;
      visit.out += shape.out;
      visit.width = std::max(visit.width, static_cast<double>(shape.in) + shape.out);
    }
    if (visit.targets > 0) visits.push_back(visit);
  }
  return visits;
}

}  // namespace

RooflineCostModel::RooflineCostModel(const ModelConfig& model, const HardwareProfile& hardware,
                                     int tensor_parallel,
                                     const std::vector<std::string>& lora_targets)
    : model_(model),
      hardware_(hardware),
      tensor_parallel_(checked_parallel(model, tensor_parallel)),
      lora_layers_(shards(model, tensor_parallel, lora_targets)),
      lora_shape_(lora_shape(lora_targets, lora_layers_)),
      visits_(host_visits(model, tensor_parallel, lora_targets)),
      prefill_(hardware, model.heads / tensor_parallel, kv_heads_per_device(model, tensor_parallel),
               model.head_dim),
      decode_(hardware, model.heads / tensor_parallel, kv_heads_per_device(model, tensor_parallel),
              model.head_dim),
      shared_launch_us_(std::min(hardware.prefill.launch_us, hardware.decode.launch_us)) {}

RooflineCostModel::LayerTime RooflineCostModel::evaluate_tokens(std::int64_t tokens) const {
  const HardwareProfile& hw = hardware_;
  const LinearShape q = shard_shape(model_, "q", tensor_parallel_);
  const LinearShape k = shard_shape(model_, "k", tensor_parallel_);
  const LinearShape o = shard_shape(model_, "o", tensor_parallel_);
  const LinearShape gate = shard_shape(model_, "gate", tensor_parallel_);
  const LinearShape down = shard_shape(model_, "down", tensor_parallel_);
  const double rows = static_cast<double>(tokens) * model_.bytes_per_weight;  // bytes per column

  double layer = gemm_us(hw, tokens, q.out + 2LL * k.out, q.in);
  layer += gemm_us(hw, tokens, o.out, o.in);
  layer += gemm_us(hw, tokens, 2LL * gate.out, gate.in);
  layer += gemm_us(hw, tokens, down.out, down.in);
  layer += 2 * elementwise_us(hw, rows * 4 * model_.hidden);  // norm fused with the residual add
  layer += elementwise_us(hw, rows * 2 * (q.out + k.out));    // rotary positions, in place
  layer += elementwise_us(hw, rows * 3 * gate.out);           // SiLU(gate) * up
  const double once = elementwise_us(hw, rows * 2 * model_.hidden) +  // embedding
                      elementwise_us(hw, rows * 4 * model_.hidden);   // last norm
  const double reduce = all_reduce_us(hw, tensor_parallel_, rows * model_.hidden);
  const int reductions = kAllReducesPerLayer * model_.layers + 1;  // and the split embedding's
  return {to_ns(layer * model_.layers + once), to_ns(reduce * reductions)};
}

TimeNs RooflineCostModel::evaluate_logits(std::int64_t sampled) const {
  const std::int64_t vocab = divide_up(model_.vocab, tensor_parallel_);
  // Gathering the split logits moves half of what an all-reduce of them does.
  const double gather =
      all_reduce_us(hardware_, tensor_parallel_,
                    static_cast<double>(sampled * model_.vocab * model_.bytes_per_weight)) /
      2;
  return to_ns(gather + gemm_us(hardware_, sampled, vocab, model_.hidden) +
               elementwise_us(hardware_, static_cast<double>(sampled * vocab * kLogitBytes)));
}

RooflineCostModel::LayerTime RooflineCostModel::token_time(std::int64_t tokens) const {
  if (tokens <= 0) return {0, 0};
  if (tokens > kTableTokens) return evaluate_tokens(tokens);
  const auto row = static_cast<std::size_t>(tokens);
  if (row >= token_times_.size()) token_times_.resize(std::max(2 * row, std::size_t{1024}));
  LayerTime& time = token_times_[row];
  if (time.dense == kUnset) time = evaluate_tokens(tokens);
  return time;
}

TimeNs RooflineCostModel::logits_time(std::int64_t sampled) const {
  if (sampled <= 0) return 0;
  if (sampled > kTableTokens) return evaluate_logits(sampled);
  const auto row = static_cast<std::size_t>(sampled);
  if (row >= logits_times_.size()) {
    logits_times_.resize(std::max(2 * row, std::size_t{1024}), kUnset);
  }
  TimeNs& time = logits_times_[row];
  if (time == kUnset) time = evaluate_logits(sampled);
  return time;
}

double RooflineCostModel::attention_us(const BatchShape& batch) const {
  double us = 0;
  const bool has_prefill = batch.prefill_requests > 0 && batch.prefill_tokens > 0;
  if (has_prefill) {
    us += prefill_.us(
        static_cast<double>(batch.prefill_requests), static_cast<double>(batch.prefill_tokens),
        static_cast<double>(batch.prefill_pairs), static_cast<double>(batch.prefill_context));
  }
  if (batch.decode_requests > 0) {
    us += decode_.us(static_cast<double>(batch.decode_requests),
                     static_cast<double>(batch.decode_context));
    if (has_prefill) us -= shared_launch_us_;
  }
  return us;
}

// Engines compute a prompt as a segment of rows with one adapter (SGMV) whatever the kernel is that
// decodes have, but for einsum, which takes all rows alike.
double RooflineCostModel::lora_us(const BatchShape& batch, LoraKernel kernel) const {
  LoraLoad all{static_cast<double>(batch.lora_tokens), static_cast<double>(batch.lora_rank_tokens),
               static_cast<double>(batch.lora_adapters), static_cast<double>(batch.lora_rank_sum),
               static_cast<double>(batch.lora_max_rank)};
  if (!kernels::traits(kernel).by_row || batch.lora_decode_rows == batch.lora_tokens) {
    return servelab::lora_us(hardware_, kernel, all, lora_shape_);
  }
  LoraLoad decodes = all;
  decodes.tokens = static_cast<double>(batch.lora_decode_rows);
  decodes.rank_tokens = static_cast<double>(batch.lora_decode_rank);
  decodes.adapters = std::min(all.adapters, decodes.tokens);
  decodes.rank_sum = std::min(all.rank_sum, decodes.rank_tokens);
  LoraLoad prompts = all;
  prompts.tokens -= decodes.tokens;
  prompts.rank_tokens -= decodes.rank_tokens;
  // Which of the adapters are prompts' the shape does not say: as wide as the mean.
  prompts.adapters = std::min(all.adapters, static_cast<double>(batch.prefill_requests));
  prompts.rank_sum = all.rank_sum * prompts.adapters / all.adapters;
  return servelab::lora_us(hardware_, kernel, decodes, lora_shape_) +
         servelab::lora_us(hardware_, LoraKernel::kSgmv, prompts, lora_shape_);
}

StepCost RooflineCostModel::step(const BatchShape& batch, Exec exec, LoraKernel kernel) const {
  StepCost cost;
  const LayerTime time = token_time(batch.tokens);
  cost.dense = time.dense + logits_time(batch.sampled);
  cost.collective = time.collective;
  cost.attention = to_ns(attention_us(batch) * model_.layers);
  if (exec == Exec::kUnmerged && batch.lora_tokens > 0) {
    cost.lora = to_ns((lora_us(batch, kernel) + hardware_.engine_costs.layer_us(batch, kernel)) *
                      model_.layers);
  }
  const auto requests = static_cast<double>(batch.prefill_requests + batch.decode_requests);
  const EngineCosts& engine = hardware_.engine_costs;
  cost.host = to_ns(hardware_.host.step_us + hardware_.host.sequence_us * requests +
                    engine.waiting_us * static_cast<double>(batch.waiting));
  return cost;
}

TimeNs RooflineCostModel::first_step() const { return to_ns(hardware_.engine_costs.first_step_us); }

const char* RooflineCostModel::no_host_lora() const {
  return hardware_.host_lora.cores > 0 ? nullptr
                                       : "the hardware profile does not say what LoRA on the host "
                                         "costs: it needs the section "
                                         "'host_lora', as a10-24g has";
}

const std::vector<double>& RooflineCostModel::gemm_times(std::int64_t tokens) const {
  const auto row = static_cast<std::size_t>(tokens);
  if (row >= gemm_times_.size()) gemm_times_.resize(std::max(2 * row, std::size_t{1024}));
  std::vector<double>& times = gemm_times_[row];
  if (times.empty()) {
    for (const HostVisit& visit : visits_) {
      times.push_back(
          gemm_us(hardware_, tokens, visit.device_out, static_cast<std::int64_t>(visit.in)));
    }
  }
  return times;
}

HostLoraCost RooflineCostModel::host_lora(const BatchShape& batch, HostCopy copy) const {
  SL_CHECK(no_host_lora() == nullptr, "asked for LoRA on a host that is not described");
  if (batch.host_tokens <= 0) return {};
  const std::vector<double>& device_us = gemm_times(batch.tokens);
  HostVisitTime sum;
  for (std::size_t i = 0; i < visits_.size(); ++i) {
    const HostVisitTime visit =
        host_visit(hardware_, batch, copy, tensor_parallel_, visits_[i], device_us[i]);
    sum.added += visit.added;
    sum.back += visit.back;
  }
  return {to_ns(sum.added * model_.layers), to_ns(sum.back * model_.layers)};
}

const char* RooflineCostModel::no_load_path(LoadPath path) const {
  const bool pageable = path == LoadPath::kPageable || path == LoadPath::kRebuild;
  if (!pageable || hardware_.copies.pageable_to_device_bytes_per_s > 0) return nullptr;
  return "the hardware profile does not say what copies from pageable memory cost: it needs the "
         "section 'copies', as a10-24g has";
}

TimeNs RooflineCostModel::load(LoadPath path, Bytes bytes) const {
  const TimeNs call = to_ns(hardware_.engine_costs.load_us);
  if (path == LoadPath::kPinned || path == LoadPath::kLayers) return call + host_to_device(bytes);
  SL_CHECK(no_load_path(path) == nullptr, "asked for a load path that is not described");
  double width = 0;
  for (const LinearShape& shape : lora_layers_) width += shape.in + shape.out;
  const double each = static_cast<double>(bytes) / (width * model_.layers);  // bytes per column
  std::vector<double> matrices;
  for (const LinearShape& shape : lora_layers_) {
    matrices.push_back(each * shape.in);
    matrices.push_back(each * shape.out);
  }
  return call + to_ns(path == LoadPath::kRebuild
                          ? rebuild_us(hardware_, model_.layers, matrices)
                          : pageable_load_us(hardware_, model_.layers, matrices));
}

TimeNs RooflineCostModel::load_model(LoadPath path, Bytes bytes) const {
  if (path == LoadPath::kPinned) return host_to_device(bytes);
  SL_CHECK(no_load_path(path) == nullptr, "asked for a load path that is not described");
  const double each = static_cast<double>(bytes);
  return to_ns(pageable_to_host_us(hardware_, each) + pageable_load_us(hardware_, 1, {each}));
}

TimeNs RooflineCostModel::merge(int rank) const {
  double us = 0;
  for (const LinearShape& shape : lora_layers_)
    us += merge_us(hardware_, shape.out, shape.in, rank);
  return to_ns(us * model_.layers);
}

TimeNs RooflineCostModel::host_to_device(Bytes bytes) const {
  return to_ns(host_copy_us(hardware_, static_cast<double>(bytes)));
}

MemoryNeeds memory_needs(const ModelConfig& model, int tensor_parallel,
                         std::int64_t max_batch_tokens, std::int64_t max_batch) {
  checked_parallel(model, tensor_parallel);
  std::int64_t per_layer = 2LL * model.hidden;
  for (const char* target : {"q", "k", "v", "o", "gate", "up", "down"}) {
    const LinearShape shape = shard_shape(model, target, tensor_parallel);
    per_layer += static_cast<std::int64_t>(shape.out) * shape.in;
  }
  const std::int64_t vocab = divide_up(model.vocab, tensor_parallel);
  const std::int64_t ffn = divide_up(model.ffn, tensor_parallel);
  const int kv_heads = kv_heads_per_device(model, tensor_parallel);
  if (model.qkv_bias) {
    per_layer +=
        static_cast<std::int64_t>(model.heads / tensor_parallel + 2 * kv_heads) * model.head_dim;
  }
  MemoryNeeds needs;
  needs.weights = (per_layer * model.layers + model.hidden +
                   vocab * model.hidden * (model.tied_embeddings ? 1 : 2)) *
                  model.bytes_per_weight;
  // Residual stream and its normed copy, gate and up, their product.
  needs.activations = max_batch_tokens * (2LL * model.hidden + 3 * ffn) * model.bytes_per_weight;
  needs.logits = std::min(max_batch, max_batch_tokens) * model.vocab;
  needs.kv_per_token = 2LL * model.layers * kv_heads * model.head_dim * model.bytes_per_weight;
  return needs;
}

Bytes adapter_bytes_per_device(const ModelConfig& model, int tensor_parallel, int rank,
                               const std::vector<std::string>& targets) {
  std::int64_t per_rank = 0;
  for (const LinearShape& shape : shards(model, tensor_parallel, targets)) {
    per_rank += shape.in + shape.out;
  }
  return per_rank * rank * model.layers * model.bytes_per_weight;
}

Bytes reserved_slot_bytes(const ModelConfig& model, int tensor_parallel, int rank,
                          const std::vector<std::string>& targets, bool vocabulary) {
  const Bytes layers = adapter_bytes_per_device(model, tensor_parallel, rank, targets);
  if (!vocabulary) return layers;
  const Bytes wide = 2 * (Bytes{model.vocab} + kAddedTokens + model.hidden);
  return layers + (wide * rank + 3 * kAddedTokens * model.hidden) * model.bytes_per_weight;
}

std::vector<Bytes> device_tensors(const ModelConfig& model, int tensor_parallel, int slots,
                                  int rank, const std::vector<std::string>& targets,
                                  bool vocabulary) {
  const Bytes hidden = model.hidden;
  const Bytes added = vocabulary ? kAddedTokens : 0;
  const Bytes head_rows = model.vocab + added;
  const auto split_rows = [&](Bytes rows) { return divide_up(rows, tensor_parallel); };
  std::vector<Bytes> tensors = {split_rows(model.vocab + added * slots) * hidden};
  for (int layer = 0; layer < model.layers; ++layer) {
    for (const auto& fused : kFusedTargets) {
      Bytes weights = 0, outputs = 0;
      for (const LinearShape& shape : shards(model, tensor_parallel, fused)) {
        weights += Bytes{shape.out} * shape.in;
        outputs += shape.out;
      }
      tensors.push_back(weights);
      if (model.qkv_bias && fused.front() == "q") tensors.push_back(outputs);
    }
    tensors.insert(tensors.end(), 2, hidden);
  }
  tensors.push_back(hidden);
  if (!model.tied_embeddings) tensors.push_back(split_rows(head_rows) * hidden);
  const Bytes wide = Bytes{slots} * rank;
  if (vocabulary) {
    tensors.insert(tensors.end(), {slots * added * hidden, wide * head_rows, wide * hidden});
  }
  for (int layer = 0; layer < model.layers && wide > 0; ++layer) {
    for (const auto& fused : kFusedTargets) {
      std::vector<std::string> adapted;
      std::copy_if(fused.begin(), fused.end(), std::back_inserter(adapted), [&](const auto& name) {
        return std::find(targets.begin(), targets.end(), name) != targets.end();
      });
      const std::vector<LinearShape> shapes = shards(model, tensor_parallel, adapted);
      for (const LinearShape& shape : shapes) tensors.push_back(wide * shape.in);
      for (const LinearShape& shape : shapes) tensors.push_back(wide * shape.out);
    }
  }
  if (vocabulary) {
    tensors.insert(tensors.end(), {wide * hidden, wide * head_rows, slots * added * hidden});
  }
  for (Bytes& tensor : tensors) tensor *= model.bytes_per_weight;
  return tensors;
}

namespace {

class Roofline : public CostModelKind {
 public:
  std::vector<ProfileSection> sections(HardwareProfile* hw) override {
    return {{"gemm", &hw->gemm},
            {"prefill", &hw->prefill},
            {"decode", &hw->decode},
            {"all_reduce", &hw->all_reduce},
            {"elementwise", &hw->elementwise},
            {"lora", &hw->lora},
            {"host", &hw->host},
            {"host_lora", &hw->host_lora, hw->host_lora.cores == 0},
            {"copies", &hw->copies, hw->copies.pageable_to_device_bytes_per_s == 0}};
  }
  // It knows GPUs' kernels.
  void check(const HardwareProfile& hardware, const ConfigNode& file) const override {
    if (hardware.generation != "cpu") return;
    throw SpecError(file.find("generation")->mark,
                    "the roofline has no kernels of generation 'cpu'; such profiles come from "
                    "servelab calibrate, with cost_model: fitted");
  }
  std::unique_ptr<CostModel> make(const ModelConfig& model, const HardwareProfile& hardware,
                                  int tensor_parallel,
                                  const std::vector<std::string>& lora_targets) const override {
    return std::make_unique<RooflineCostModel>(model, hardware, tensor_parallel, lora_targets);
  }
};

}  // namespace
}  // namespace servelab

SERVELAB_COST_MODEL("roofline", Roofline)
