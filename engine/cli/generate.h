// `servelab generate`: tokens in, tokens out, for one prompt, so that a model and its adapters can
// be compared with other implementations.
#ifndef SERVELAB_CLI_GENERATE_H_
#define SERVELAB_CLI_GENERATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/backend/device/device.h"

namespace servelab {

struct GenerateOptions {
  std::string model;    // a file of base/model/, or a Hugging Face folder
  std::string adapter;  // a PEFT folder; empty: the base model
  std::string tokens;   // the prompt's ids, separated by commas
  std::string backend = "cpu";
  std::string dtype = "auto";
  int max_tokens = 16;
  int threads = 0;  // of the CPU engine; 0: all processors
  bool merged = false;
  SamplingOptions sampling;
  std::string experiments = "experiments";
};

// The output ids, separated by commas. Throws SpecError for bad input.
std::string generate_text(const GenerateOptions& options);

// Prefills `prompt` in chunks of at most the device's max_batch_tokens, then decodes, in the first
// blocks of the KV cache. `logits`, where not null: of the last token.
std::vector<std::int32_t> generate(Device* device, const std::vector<std::int32_t>& prompt,
                                   AdapterId adapter, Exec exec, int max_tokens,
                                   const SamplingOptions& sampling,
                                   std::vector<float>* logits = nullptr);

}  // namespace servelab

#endif  // SERVELAB_CLI_GENERATE_H_
