// What a replica policy decides for one step, and the vocabulary of those decisions.
#ifndef SERVELAB_SERVE_PLAN_H_
#define SERVELAB_SERVE_PLAN_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/check.h"
#include "engine/core/ids.h"
#include "kernels/lora_kind.h"

namespace servelab {

enum class Exec : std::uint8_t {
  kUnmerged,  // base weights untouched; LoRA computed beside them, any mix of adapters
  kMerged,    // `StepPlan::merged` is folded into the weights; the step runs only its requests
};

// How the LoRA part of an unmerged step is computed (S-LoRA 4, Punica 4, dLoRA 6).
using LoraKernel = kernels::LoraKind;

enum class LoraSite : std::uint8_t { kDevice, kHost, kRemote };

// How activations reach LoRA that the host computes (CaraServe 4.2).
enum class HostCopy : std::uint8_t {
  kFused,     // one operation of the device copies and signals; the host never waits for the device
  kSynced,    // a copy to pinned memory, a wait of the host for its end, then a signal
  kPageable,  // the same to pageable memory, as frameworks do it: `.to("cpu")`
};
inline constexpr std::array kHostCopies = {"fused", "synced", "pageable"};

// When the device takes over LoRA that the host has begun a step with, as the adapter comes to it.
enum class TakeOver : std::uint8_t {
  kNever,   // the host computes all layers of the step
  kLoaded,  // from the first layer on that begins after the whole adapter has come (CaraServe 4.1)
  kLayers,  // layer by layer, as CaraServe's public code: it loads layers 8, 9, ... and then 0 to
            // 7, and a group of eight moves over when it is there
};
inline constexpr std::array kTakeOvers = {"never", "loaded", "layers"};
inline constexpr int kTakeOverGroup = 8;  // layers that move over together, with kLayers

enum class PreemptMode : std::uint8_t {
  kRecompute,  // drop the KV cache; the request's tokens are prefilled again
  kSwap,       // move the KV cache to host memory; a later slice brings it back
};

// The share of one request in one step. `tokens` new positions are computed; a slice that covers
// all of a request's pending tokens also samples the next one. In a batch whose rows are padded to
// one length, `padding` is what its row is longer by: positions that a prefill computes, and keys
// that a decode reads, for nothing. Engines here have ragged batches and compute none of it.
struct Slice {
  RequestId request;
  std::int32_t tokens;
  LoraSite lora = LoraSite::kDevice;
  std::int32_t padding = 0;
  bool operator==(const Slice&) const = default;
};

struct Preemption {
  RequestId request;
  PreemptMode mode = PreemptMode::kRecompute;
};

// How a step is computed: what of a plan reaches the device as it is.
struct StepMode {
  Exec exec = Exec::kUnmerged;
  LoraKernel kernel = LoraKernel::kMbgmv;
  double device_share = 1;                // of the device's SMs, (0, 1]
  HostCopy host_copy = HostCopy::kFused;  // for slices with LoraSite::kHost
  TakeOver take_over = TakeOver::kNever;  // likewise
  bool operator==(const StepMode&) const = default;
};

// Reused between steps: a policy calls clear() and fills it. Carried out in this order: reject,
// preempt, evict, load, slices. A plan without slices starts no step (loads still begin).
struct StepPlan : StepMode {
  ModelId model{};                // whose requests the step runs
  AdapterId merged = kBaseModel;  // with kMerged: whose weights are folded in
  std::vector<RequestId> reject;
  std::vector<Preemption> preempt;
  std::vector<AdapterId> evict;
  std::vector<AdapterId> load;
  std::vector<ModelId> evict_models;  // of those that take turns
  std::vector<ModelId> load_models;
  std::vector<Slice> slices;

  // Before `slices`: a token of every running request, in the order of ReplicaView::running(). As
  // if each were a slice, but planning and carrying it out costs the same however many they are.
  // Allowed where ReplicaView::blocks_to_decode_all() is known; nobody is preempted by such a plan.
  bool decode_all = false;

  // How many more times the policy would plan these same slices and nothing else: as long as each
  // of them is a token that is decoded, no request ends, blocks suffice, and no request comes to
  // the replica or leaves it and no load ends there. The replica then carries the plan out by
  // itself, in O(1) a step; StepReport says how often it did. What gauges show may not change
  // meanwhile. A plan that does anything else than run slices, or switches weights, is not
  // repeated.
  std::int64_t repeats = 0;
  // Also when requests come and loads end: nobody could join.
  bool repeats_when_full = false;
  static constexpr std::int64_t kAlways = INT64_MAX;

  void clear() {
    static_cast<StepMode&>(*this) = {};
    repeats = 0;
    repeats_when_full = decode_all = false;
    model = ModelId{};
    merged = kBaseModel;
    reject.clear();
    preempt.clear();
    evict.clear();
    load.clear();
    evict_models.clear();
    load_models.clear();
    slices.clear();
  }
  bool only_runs() const {
    return load.empty() && evict.empty() && preempt.empty() && reject.empty() &&
           load_models.empty() && evict_models.empty();
  }
  bool runs() const { return decode_all || !slices.empty(); }  // starts a step
  bool empty() const { return !runs() && only_runs(); }
};

const char* name(Exec exec);
const char* name(LoraKernel kernel);
constexpr const char* name(HostCopy copy) { return kHostCopies[static_cast<std::size_t>(copy)]; }
constexpr const char* name(TakeOver take_over) {
  return kTakeOvers[static_cast<std::size_t>(take_over)];
}

// The value that has this name, one of `names` in the order of the enum.
template <class T, std::size_t n>
T named(const std::array<const char*, n>& names, std::string_view text) {
  const auto found = std::find(names.begin(), names.end(), text);
  SL_CHECK(found != names.end(), "no choice is called " + std::string(text));
  return static_cast<T>(found - names.begin());
}

}  // namespace servelab

#endif  // SERVELAB_SERVE_PLAN_H_
