// What ranks say to each other. Rank 0 sends commands and the other ranks, its workers, answer each
// with one reply. A worker has three connections, so that one matter never waits for another:
//   steps     everything in the order of the device's steps
//   loads     adapters, which come while steps run
//   control   signals and goodbyes, which neither side asks for
// The protocol's version is in the hello; both sides are of one build, so there is only one.
#ifndef SERVELAB_BACKEND_RANKS_MESSAGES_H_
#define SERVELAB_BACKEND_RANKS_MESSAGES_H_

#include <cstdint>
#include <span>
#include <string>

#include "engine/backend/device/accelerator.h"
#include "engine/backend/device/device_job.h"
#include "engine/backend/device/tensor_parallel.h"
#include "engine/backend/ranks/socket.h"
#include "engine/backend/ranks/wire.h"
#include "engine/model/shard.h"

namespace servelab::ranks {

inline constexpr int kMostRanks = 4096;

enum class Purpose : std::uint8_t { kSteps, kLoads, kControl };
inline constexpr int kPurposes = 3;

enum class Message : std::uint8_t {
  // Meeting: rank 0's random number; the worker's and its proof; rank 0's proof (secret.h); who
  // the worker is.
  kChallenge = 1,
  kWorkerProof,
  kRank0Proof,
  kHello,
  kWelcome,
  kRefusal,
  // Steps.
  kPrepare,    // OpenRank
  kNameGroup,  // nothing; the reply is a text
  kOpen,       // OpenRank
  kRun,        // DeviceJob; the reply is a StepReply
  kClose,
  // Loads: each a LoadRequest.
  kHold,
  kLoad,
  kWait,
  kEvict,
  // Replies.
  kDone,
  kFailed,
  kContent,  // the next bytes of an adapter
  // Control.
  kSignal,
  kAbort,
  kGoodbye,
};

// What a rank is asked to become.
struct OpenRank {
  std::string model;  // a digest of it, which the worker has to know
  DevicePlan plan;    // `device` is the worker's own affair
  Shard shard;
  std::string group;    // where the ranks meet for their sums; empty for one rank
  bool shares = false;  // steps get shares of the device: plan.partitions is the worker's own too
};

template <class Wire, MaybeConst<OpenRank> T>
void each_field(Wire& wire, T& open) {
  constexpr int kMost = 1 << 20;
  auto& [model, plan, shard, group, shares] = open;
  wire.text(model);
  // Left out are each rank's own.
  [[maybe_unused]] auto& [limits, type, device, ranks, targets, adapters, widest_rank, padded,
                          adapter_bytes, folded, merges, graphs, host_lora, host_threads,
                          host_cores, lora, partitions] = plan;
  [[maybe_unused]] auto& [by, transport, workers, rows_per_worker, cores, shares_cores, program,
                          patience] = lora;
  auto& [kv_blocks, block_tokens, max_batch, max_batch_tokens] = limits;
  wire.numbers(kv_blocks, block_tokens, max_batch, max_batch_tokens);
  wire.choice(type, 3, "an element type");
  wire.numbers(ranks, targets, adapters, widest_rank, padded, adapter_bytes, folded, merges, graphs,
               host_lora, host_threads, workers, rows_per_worker, shares_cores);
  wire.choice(by, static_cast<int>(kHostLoraBy.size()), "who computes LoRA on the host");
  wire.choice(transport, static_cast<int>(kHostLoraTransports.size()), "a transport");
  for (const LinearLayer target : targets) {
    wire.require(static_cast<int>(target) < kLinearLayers, "an unknown linear layer");
  }
  for (const int count : {block_tokens, max_batch, max_batch_tokens}) {
    wire.require(count >= 1 && count <= kMost, "a limit that no plan has");
  }
  for (const int count : {adapters, widest_rank, host_threads, workers}) {
    wire.require(count >= 0 && count <= kMost, "a number that no plan has");
  }
  wire.require(rows_per_worker >= 1, "workers without rows");
  wire.require(kv_blocks >= 1, "no KV blocks");
  wire.numbers(shard.rank, shard.ranks);
  wire.require(ranks >= 1 && ranks <= kMostRanks && shard.ranks == ranks && shard.rank >= 0 &&
                   shard.rank < ranks,
               "a rank that does not exist");
  wire.text(group);
  wire.numbers(shares);
}

// All changes to a rank's adapters up to now: how many, and a digest of what they were.
struct AdapterState {
  std::uint64_t changes = 0;
  std::uint64_t digest = 0;
};
struct StepReply {
  DeviceResult result;
  AdapterState state;
};

template <class Wire, MaybeConst<StepReply> T>
void each_field(Wire& wire, T& reply) {
  auto& [result, state] = reply;
  each_field(wire, result);
  wire.numbers(state.changes, state.digest);
}

// An adapter. Where the worker does not hold it, its content follows kHold and kLoad.
struct LoadRequest {
  Load load;
  bool held = false;
  std::uint64_t digest = 0;
  std::string name;
};

template <class Wire, MaybeConst<LoadRequest> T>
void each_field(Wire& wire, T& request) {
  auto& [load, held, digest, name] = request;
  each_field(wire, load);
  wire.numbers(held, digest);
  wire.text(name);
}

// Why a command failed.
enum class Failure : std::uint8_t {
  kInternal,  // of our own making
  kInput,     // the spec's, a file's or the machine's fault
  kGroup,     // the ranks no longer agree: none of them can go on
};
struct FailureText {
  Failure kind = Failure::kInternal;
  std::string text;
};

template <class Wire, MaybeConst<FailureText> T>
void each_field(Wire& wire, T& failure) {
  wire.choice(failure.kind, 3, "a failure");
  wire.text(failure.text);
}

// Throws what it says, with `who` before it.
[[noreturn]] void throw_failure(const std::string& who, std::span<const std::byte> message);

}  // namespace servelab::ranks

#endif  // SERVELAB_BACKEND_RANKS_MESSAGES_H_
