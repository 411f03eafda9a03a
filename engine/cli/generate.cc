#include "engine/cli/generate.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <numeric>
#include <span>

#include "engine/backend/device/accelerator.h"
#include "engine/core/check.h"
#include "engine/model/hf_model.h"
#include "engine/run/real_run.h"
#include "engine/spec/library.h"

namespace servelab {
namespace {

constexpr int kBlockTokens = 16;

std::vector<std::int32_t> parse_tokens(const std::string& text, int vocab) {
  std::vector<std::int32_t> ids;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    std::int32_t id = 0;
    const auto [next, problem] = std::from_chars(at, end, id);
    if (problem != std::errc() || id < 0 || id >= vocab || (next != end && *next != ',')) {
      throw SpecError("--tokens: entry " + std::to_string(ids.size() + 1) + " of '" + text +
                      "' is not a token id from 0 to " + std::to_string(vocab - 1));
    }
    ids.push_back(id);
    at = next == end ? end : next + 1;
  }
  if (ids.empty()) throw SpecError("--tokens: a prompt has at least one token id");
  return ids;
}

ModelConfig find_model(const GenerateOptions& options) {
  if (std::filesystem::exists(std::filesystem::path(options.model) / "config.json")) {
    return load_hf_config(options.model);
  }
  const Library library(options.experiments);
  return load_model_config(library.find("model", options.model, SourceMark{"--model", 0, 0}));
}

}  // namespace

std::vector<std::int32_t> generate(Device* device, const std::vector<std::int32_t>& prompt,
                                   AdapterId adapter, Exec exec, int max_tokens,
                                   const SamplingOptions& sampling, std::vector<float>* logits) {
  DeviceJob job;
  job.mode = {exec, LoraKernel::kSgmv};
  job.sampling = sampling;
  job.wants_logits = logits != nullptr;
  Sequence& sequence = job.sequences.emplace_back();
  sequence.blocks.resize(static_cast<std::size_t>(device->limits().kv_blocks));
  std::iota(sequence.blocks.begin(), sequence.blocks.end(), 0);
  sequence.adapter = adapter;
  std::vector<std::int32_t> ids = prompt;
  DeviceResult result;
  std::size_t context = 0;
  while (ids.size() < prompt.size() + static_cast<std::size_t>(max_tokens)) {
    sequence.context = static_cast<std::int32_t>(context);
    const std::size_t count =
        std::min(ids.size() - context, static_cast<std::size_t>(device->limits().max_batch_tokens));
    const auto from = ids.begin() + sequence.context;
    sequence.tokens.assign(from, from + static_cast<std::ptrdiff_t>(count));
    sequence.samples = context + count == ids.size();
    sequence.draw = ids.size();
    device->run(job, &result);
    context += count;
    if (!sequence.samples) continue;
    if (result.sampled.front() < 0) throw SpecError("the model's logits are not numbers (NaN)");
    ids.push_back(result.sampled.front());
  }
  if (logits != nullptr) *logits = std::move(result.logits);
  return {ids.begin() + static_cast<std::ptrdiff_t>(prompt.size()), ids.end()};
}

std::string generate_text(const GenerateOptions& options) {
  const ModelConfig model = find_model(options);
  const std::vector<std::int32_t> prompt = parse_tokens(options.tokens, model.vocab);
  const auto total = static_cast<int>(prompt.size()) + options.max_tokens;
  if (total > model.max_context_tokens) {
    throw SpecError("--tokens and --max-tokens: " + std::to_string(total) +
                    " tokens are more than the " + std::to_string(model.max_context_tokens) +
                    " of " + model.name + "'s context");
  }
  RuntimeSection runtime;
  runtime.dtype = options.dtype;
  DevicePlan plan;
  plan.type = element_type(options.backend, runtime, model);
  plan.limits.kv_blocks = (total + kBlockTokens - 1) / kBlockTokens;
  plan.limits.block_tokens = kBlockTokens;
  plan.limits.max_batch = 1;
  plan.limits.max_batch_tokens = std::min(512, std::max(1, total));
  std::shared_ptr<const LoraWeights> weights;
  if (!options.adapter.empty()) {
    weights = load_peft_adapter(options.adapter, model);
    plan.adapters = 1;
    plan.widest_rank = weights->rank();
    plan.targets = weights->targets();
    plan.merges = options.merged;
  }
  const auto engine = find_accelerator(options.backend);
  engine->share_host(0, {.threads = options.threads, .pin = false}, &plan);
  const auto device = engine->make(model, *open_weights(model), plan);
  const AdapterId adapter = weights == nullptr ? kBaseModel : AdapterId{0};
  if (weights != nullptr) {
    device->load({adapter}, weights);
    device->wait(adapter);
  }
  if (options.merged && weights != nullptr) {
    DeviceJob merge;
    merge.merge = adapter;
    DeviceResult merged;
    device->run(merge, &merged);
  }
  const std::vector<std::int32_t> output = generate(
      device.get(), prompt, options.merged ? kBaseModel : adapter,
      options.merged ? Exec::kMerged : Exec::kUnmerged, options.max_tokens, options.sampling);
  std::string text;
  for (const std::int32_t id : output) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}

}  // namespace servelab
