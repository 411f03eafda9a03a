#include "tests/bench/steps.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/backend/cost/cost_model.h"

namespace servelab {
namespace {

int blocks_each(const StepCase& c) {
  return (c.context + c.tokens + kStepBlockTokens - 1) / kStepBlockTokens;
}

const std::vector<std::string> kTargets = {"q", "k", "v", "o"};

}  // namespace

std::int64_t blocks_of(const StepCase& c) { return std::int64_t{c.batch} * blocks_each(c); }

StepLoad::StepLoad(std::unique_ptr<Device> device, int adapters, int rank)
    : device_(std::move(device)),
      adapter_bytes_(adapter_bytes_per_device(device_->model(), 1, rank, kTargets)) {
  for (int i = 0; i < adapters; ++i) {
    const auto number = static_cast<std::uint32_t>(i);
    device_->load({AdapterId{number}, rank},
                  random_adapter(device_->model(), "a", rank, kTargets, number));
    device_->wait(AdapterId{number});
  }
}

StepParts StepLoad::run(const StepCase& c) {
  DeviceJob job;
  job.mode.kernel = LoraKernel::kMbgmv;
  for (int i = 0; i < c.batch; ++i) {
    Sequence& sequence = job.sequences.emplace_back();
    sequence.context = c.context;
    sequence.tokens.assign(static_cast<std::size_t>(c.tokens), 5);
    sequence.blocks.resize(static_cast<std::size_t>(blocks_each(c)));
    std::iota(sequence.blocks.begin(), sequence.blocks.end(), i * blocks_each(c));
    sequence.samples = true;
    if (c.adapters > 0) sequence.adapter = AdapterId{static_cast<std::uint32_t>(i % c.adapters)};
  }
  device_->run(job, &result_);
  return result_.parts;
}

double StepLoad::bytes(const StepCase& c) const {
  const ModelConfig& model = device_->model();
  const double weights = static_cast<double>(model.weight_bytes()) -
                         2.0 * model.vocab * model.hidden;  // the embedding is only looked up
  const double kv =
      static_cast<double>(model.kv_bytes_per_token()) * (c.context + c.tokens) * c.batch;
  const double lora = c.adapters * static_cast<double>(adapter_bytes_);
  return weights + kv + lora;
}

double StepLoad::flops(const StepCase& c) const {
  const ModelConfig& model = device_->model();
  const double head = 2.0 * model.vocab * model.hidden;
  const double layers = 2.0 * static_cast<double>(model.parameters()) - 2 * head;
  const double pairs = c.tokens * (c.context + (c.tokens + 1) / 2.0);
  const double attention = 4.0 * pairs * model.heads * model.head_dim * model.layers;
  return c.batch * (c.tokens * layers + head + attention);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace servelab
