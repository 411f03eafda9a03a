// How an engine is set up: the spec's `engine:` section, which a technique may change.
#ifndef SERVELAB_SERVE_ENGINE_SETTINGS_H_
#define SERVELAB_SERVE_ENGINE_SETTINGS_H_

#include <array>
#include <string>
#include <vector>

#include "engine/core/params.h"
#include "engine/serve/cost.h"
#include "engine/serve/weight_pool.h"

namespace servelab {

struct EngineLimits {
  int max_batch = 256;          // requests in one step
  int max_batch_tokens = 2048;  // new positions in one step
};

inline constexpr std::array<const char*, 2> kAllocators = {"bytes", "segments"};

struct EngineSettings {
  std::string like;  // a file of base/engine/ whose settings these start from
  EngineLimits limits;
  int block_tokens = 16;
  double memory_fraction = 0.9;  // of device memory that the engine may use
  AdapterMemory adapter_memory = AdapterMemory::kSlots;
  int adapter_slots = 0;  // kSlots: adapters on the device at once; 0: as many as are served
  // What a slot is made for, where an engine reserves slots before it knows adapters, as vLLM does;
  // 0 and empty: as wide and with such matrices as the adapters that are served.
  int slot_rank = 0;
  std::vector<std::string> slot_targets;
  bool slot_vocabulary = false;
  // Memory that a profiling run finds taken, beside weights and a step's activations.
  double bytes_per_logit = 20;  // of each request that a step may sample for, and vocabulary entry
  double other_memory_bytes = 0;  // beside what is named here: the driver, libraries, buffers
  // More of it by slots: bytes at these numbers of slots, which ascend, and linear between them.
  std::vector<double> profiled_slots;
  std::vector<double> profiled_bytes;
  std::string allocator = "bytes";  // one of kAllocators: what weights and slots take
  int max_model_len = 0;  // tokens of one request; 0: the model's own limit, with no minimum of KV
  // Each adapter is served as a model of its own, a copy of the base with the adapter folded in
  // (vllm-uniform); `model_slots` of all models are on the device at once; 0: all, always.
  bool adapters_as_models = false;
  int model_slots = 0;
  LoadPath model_load_path = LoadPath::kPinned;  // of models that take turns; or pageable
  bool preloaded_models = false;  // the first of them are on the devices from the start
  // CaraServe's Cached (7.1), an oracle: every adapter is on the device from the start and takes
  // none of its memory. Not on real devices, which have no such memory.
  bool cached_adapters = false;
  std::string load_path = "pinned";  // one of kLoadPaths
  double device_share = 1;  // of the device's SMs, for each step whose plan does not say otherwise

  LoadPath path() const;  // of `load_path`
  void fields(ParamFields& f);
};

}  // namespace servelab

#endif  // SERVELAB_SERVE_ENGINE_SETTINGS_H_
