#include "tests/bench/steps.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace servelab {
namespace {

int blocks_each(const StepCase& c) {
  return (c.context + c.tokens + kStepBlockTokens - 1) / kStepBlockTokens;
}

}  // namespace

std::int64_t blocks_of(const StepCase& c) { return std::int64_t{c.batch} * blocks_each(c); }

StepLoad::StepLoad(std::unique_ptr<Executor> executor, int adapters, int rank)
    : executor_(std::move(executor)) {
  for (int i = 0; i < adapters; ++i) {
    weights_.push_back(random_adapter(executor_->model(), "a", rank, {"q", "k", "v", "o"},
                                      static_cast<std::uint64_t>(i)));
    adapters_.push_back(executor_->pack_adapter(*weights_.back(), rank));
    adapters_.back()->wait();
  }
}

StepParts StepLoad::run(const StepCase& c) {
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(c.tokens), 5);
  std::vector<std::vector<BlockIndex>> blocks(static_cast<std::size_t>(c.batch));
  std::vector<SequenceSlice> slices(blocks.size());
  for (std::size_t i = 0; i < slices.size(); ++i) {
    blocks[i].resize(static_cast<std::size_t>(blocks_each(c)));
    std::iota(blocks[i].begin(), blocks[i].end(), static_cast<int>(i) * blocks_each(c));
    slices[i].context = c.context;
    slices[i].tokens = tokens;
    slices[i].blocks = blocks[i];
    slices[i].samples = true;
    if (c.adapters > 0) {
      slices[i].adapter = adapters_[i % static_cast<std::size_t>(c.adapters)].get();
    }
  }
  return executor_->run(slices, {Exec::kUnmerged, LoraKernel::kMbgmv}, {}, &sampled_);
}

double StepLoad::bytes(const StepCase& c) const {
  const ModelConfig& model = executor_->model();
  const double weights = static_cast<double>(model.weight_bytes()) -
                         2.0 * model.vocab * model.hidden;  // the embedding is only looked up
  const double kv =
      static_cast<double>(executor_->kv_bytes_per_token()) * (c.context + c.tokens) * c.batch;
  const double lora =
      c.adapters > 0 ? c.adapters * static_cast<double>(adapters_.front()->bytes()) : 0;
  return weights + kv + lora;
}

double StepLoad::flops(const StepCase& c) const {
  const ModelConfig& model = executor_->model();
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
