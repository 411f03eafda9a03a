// What a device is asked to do at once, as plain data that owns all of it: RealBackend writes it
// down once, and every thread or process of a replica gets the same one.
#ifndef SERVELAB_BACKEND_DEVICE_DEVICE_JOB_H_
#define SERVELAB_BACKEND_DEVICE_DEVICE_JOB_H_

#include <cstdint>
#include <type_traits>
#include <vector>

#include "engine/core/ids.h"
#include "engine/core/units.h"
#include "engine/serve/backend.h"
#include "engine/serve/kv_pool.h"
#include "engine/serve/plan.h"

namespace servelab {

struct SamplingOptions {
  double temperature = 0;  // 0: greedy
  double top_p = 1;
  std::uint64_t seed = 0;
};

// One sequence's share of a step.
struct Sequence {
  std::int32_t context = 0;          // positions whose keys and values exist
  std::vector<std::int32_t> tokens;  // ids of the new positions, at least one
  std::vector<BlockIndex> blocks;    // block table that covers context + tokens
  AdapterId adapter = kBaseModel;
  LoraSite lora = LoraSite::kDevice;
  bool samples = false;    // compute logits of the last position, and choose the next token
  std::uint64_t draw = 0;  // names this draw's random number; unused when greedy
};

// Carried out in the order of its members: contexts' copies in host memory that can go, contexts to
// move, the weights to return to or to fold in, one forward pass of the sequences.
struct DeviceJob {
  std::vector<RequestId> dropped;
  std::vector<KvMove> moves;
  bool unmerge = false;
  AdapterId merge = kBaseModel;
  AdapterId folded = kBaseModel;  // the copy of the layers that the pass runs on (Load::folded)
  StepMode mode;
  SamplingOptions sampling;
  std::vector<Sequence> sequences;  // none: what came before is done when the job ends
  bool may_replay = true;           // false: not as a recorded graph; all ranks do the same
  bool measure_parts = false;       // take the time apart even where that slows the step down
  bool wants_logits = false;
};

// Time of a forward pass on the device, by part. `total` is always there; the others may be all in
// `dense` where taking them apart would disturb the step (DeviceJob::measure_parts).
struct StepParts {
  TimeNs dense = 0;
  TimeNs attention = 0;
  TimeNs lora = 0;
  TimeNs total = 0;
};

struct DeviceResult {
  TimeNs moving = 0;     // of contexts, as far as the forward pass had to wait for it
  TimeNs switching = 0;  // of weights
  StepParts parts;
  std::int32_t host_layers = 0;  // in which some LoRA was computed on the host
  HostWork host_work;
  std::vector<std::int32_t> sampled;  // ids, by sequence that samples; -1: logits are not numbers
  std::vector<float> logits;          // [sequences that sample][vocab], where they were asked for
};

// Brings an adapter to a device.
struct Load {
  AdapterId adapter = kBaseModel;
  std::int32_t width = 0;  // ranks that it is padded to; 0: its own
  bool folded = false;     // as a copy of all layers with the adapter in them: a whole model
};

// `T` is `S`, to be read or to be written.
template <class T, class S>
concept MaybeConst = std::is_same_v<std::remove_const_t<T>, S>;

// Every field once, for what writes these structures and what reads them (ranks/wire.h). A new
// field does not compile until it is named here.
template <class Wire, MaybeConst<StepMode> T>
void each_field(Wire& wire, T& mode) {
  auto& [exec, kernel, device_share, host_copy, take_over] = mode;
  wire.choice(exec, 2, "exec");
  wire.choice(kernel, static_cast<int>(kernels::kLoraKinds.size()), "a LoRA kernel");
  wire.numbers(device_share);
  wire.choice(host_copy, static_cast<int>(kHostCopies.size()), "host_copy");
  wire.choice(take_over, static_cast<int>(kTakeOvers.size()), "take_over");
}

template <class Wire, MaybeConst<SamplingOptions> T>
void each_field(Wire& wire, T& sampling) {
  auto& [temperature, top_p, seed] = sampling;
  wire.numbers(temperature, top_p, seed);
}

template <class Wire, MaybeConst<Sequence> T>
void each_field(Wire& wire, T& sequence) {
  auto& [context, tokens, blocks, adapter, lora, samples, draw] = sequence;
  wire.numbers(context, tokens, blocks, adapter, samples, draw);
  wire.choice(lora, 3, "where LoRA is computed");
  wire.require(context >= 0 && !tokens.empty(), "a sequence without tokens");
}

template <class Wire, MaybeConst<KvMove> T>
void each_field(Wire& wire, T& move) {
  auto& [request, to_host, tokens, blocks] = move;
  wire.numbers(request, to_host, tokens, blocks);
  wire.require(tokens >= 0, "a context of less than no tokens");
}

template <class Wire, MaybeConst<DeviceJob> T>
void each_field(Wire& wire, T& job) {
  auto& [dropped, moves, unmerge, merge, folded, mode, sampling, sequences, may_replay,
         measure_parts, wants_logits] = job;
  wire.numbers(dropped, unmerge, merge, folded, may_replay, measure_parts, wants_logits);
  wire.list(moves, "moves");
  each_field(wire, mode);
  each_field(wire, sampling);
  wire.list(sequences, "sequences");
}

template <class Wire, MaybeConst<DeviceResult> T>
void each_field(Wire& wire, T& result) {
  auto& [moving, switching, parts, host_layers, host_work, sampled, logits] = result;
  auto& [dense, attention, lora, total] = parts;
  auto& [data, compute, lost, recomputed] = host_work;
  wire.numbers(moving, switching, dense, attention, lora, total, host_layers, data, compute, lost,
               recomputed, sampled, logits);
}

template <class Wire, MaybeConst<Load> T>
void each_field(Wire& wire, T& load) {
  auto& [adapter, width, folded] = load;
  wire.numbers(adapter, width, folded);
  wire.require(width >= 0, "an adapter of less than no ranks");
}

}  // namespace servelab

#endif  // SERVELAB_BACKEND_DEVICE_DEVICE_JOB_H_
