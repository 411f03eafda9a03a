#include "engine/serve/policy.h"

#include <algorithm>
#include <functional>

namespace servelab {

void EngineSettings::fields(ParamFields& f) {
  f.add("like", &like, "an engine of base/engine/, whose settings these start from");
  f.add("max_batch", &limits.max_batch, "requests in one step").range(1, 1 << 16);
  f.add("max_batch_tokens", &limits.max_batch_tokens, "new token positions in one step")
      .range(1, 1 << 24);
  f.add("block_tokens", &block_tokens, "tokens in one KV block").range(1, 4096);
  f.add("memory_fraction", &memory_fraction, "share of device memory that the engine may use")
      .range(0.01, 1);
  f.add("adapter_slots", &adapter_slots, "adapters on the device at once (0: all that are served)")
      .range(0, 1 << 20);
  f.add("slot_rank", &slot_rank,
        "widest rank that a slot takes, reserved for each slot whoever is served, as by vLLM's "
        "max_lora_rank (0: the widest adapter's, for no more slots than adapters)")
      .range(0, 4096);
  f.add("slot_targets", &slot_targets,
        "linear layers that a slot has room for (none: those of lora.targets)")
      .one_of({"q", "k", "v", "o", "gate", "up", "down"});
  f.add("slot_vocabulary", &slot_vocabulary,
        "slots have room for the embedding and the LM head, and 256 tokens of an adapter's own");
  f.add("bytes_per_logit", &bytes_per_logit,
        "memory for sampling: of each request of max_batch and entry of the vocabulary")
      .range(0, 1024);
  f.add("other_memory_bytes", &other_memory_bytes,
        "memory beside weights, activations, slots and KV: the driver's, libraries', buffers")
      .range(0, 1e12);
  f.add("profiled_slots", &profiled_slots,
        "numbers of slots, ascending, at which profiled_bytes are known")
      .range(0, 1 << 20);
  f.add("profiled_bytes", &profiled_bytes,
        "memory that the profiling run takes in addition, at each of profiled_slots")
      .range(0, 1e12);
  f.add("allocator", &allocator,
        "what weights and reserved slots take: their bytes, or the segments of PyTorch's caching "
        "allocator that they lie in")
      .one_of({kAllocators.begin(), kAllocators.end()});
  f.add("max_model_len", &max_model_len,
        "tokens of one request; an engine with room for fewer does not start (0: the model's "
        "limit, and any room)")
      .range(0, 1 << 24);
  f.add("cached_adapters", &cached_adapters,
        "an oracle: all adapters on the device from the start, in no memory (twin and null)");
  f.add("load_path", &load_path,
        "how adapters are copied to the device: in one from pinned memory, by layers that steps "
        "wait for one by one, as a framework does it from pageable memory, or so and then rebuilt "
        "while the serving loop stands still")
      .one_of({kLoadPaths.begin(), kLoadPaths.end()});
  f.add("device_share", &device_share,
        "share of the device's SMs that steps get (a technique's plan may say otherwise)")
      .range(0.01, 1);
}

LoadPath EngineSettings::path() const { return named<LoadPath>(kLoadPaths, load_path); }

std::string desirable(const Technique::Capabilities& technique,
                      const ClusterPolicy::Capabilities& route) {
  std::string names;
  const auto add = [&names](bool has, const char* name) {
    if (has) names += (names.empty() ? "" : ", ") + std::string(name);
  };
  add(technique.mixed_batches, "GPU-efficient");
  add(technique.cold_start_free, "cold-start-free");
  add(route.slo_aware, "SLO-aware");
  return names;
}

void check_engine(const Technique& technique, const EngineSettings& engine) {
  if (technique.capabilities().merges && engine.adapter_slots == 1) {
    throw SpecError(
        "engine.adapter_slots is 1, but a technique that merges adapters needs 2: one in the "
        "weights, which is needed to take it out again, and one to come in");
  }
  const std::vector<double>& slots = engine.profiled_slots;
  if (slots.size() != engine.profiled_bytes.size() ||
      std::adjacent_find(slots.begin(), slots.end(), std::greater_equal<>()) != slots.end()) {
    throw SpecError(
        "engine.profiled_slots must ascend, and have as many numbers as engine.profiled_bytes");
  }
}

}  // namespace servelab
