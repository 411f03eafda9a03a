// libFuzzer: any text is an adapter_config.json, whose patterns then match in bounded time, or a
// SpecError. The same text is tried as a model's config.json.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "engine/core/check.h"
#include "engine/model/hf_model.h"
#include "engine/model/peft_config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace servelab;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const PeftConfig config(text, "fuzz");
    for (const char* module : {"model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"}) {
      if (!config.targets(module)) continue;
      if (config.rank(module) < 1 || !std::isfinite(config.scale(module))) std::abort();
    }
  } catch (const SpecError&) {
  }
  try {
    parse_hf_config(text, "fuzz", "m");
  } catch (const SpecError&) {
  }
  return 0;
}
