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
#include <vector>

#include "engine/backend/device/accelerator.h"
#include "engine/backend/device/executor.h"
#include "engine/backend/ranks/socket.h"
#include "engine/backend/ranks/wire.h"
#include "engine/core/check.h"
#include "engine/model/shard.h"

namespace servelab::ranks {

inline constexpr int kMostRanks = 4096;

enum class Purpose : std::uint8_t { kSteps, kLoads, kControl };
inline constexpr int kPurposes = 3;

enum class Message : std::uint8_t {
  // Meeting.
  kHello = 1,
  kWelcome,
  kRefusal,
  // Steps.
  kPrepare,
  kNameGroup,
  kOpen,
  kRun,
  kLogits,
  kMerge,
  kUnmerge,
  kCopyOut,
  kCopyIn,
  kFinishCopies,
  kDropCopy,  // no reply
  kHostAdapter,
  kDropHostAdapter,
  kClose,
  // Loads.
  kHold,
  kPack,
  kWait,
  kDrop,
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
WireWriter encode(const OpenRank& open);
OpenRank decode_open(std::span<const std::byte> message);

// What stays the same while an executor lives, as its worker sees it.
struct RankFacts {
  Bytes kv_bytes_per_token = 0;
};

// One adapter of a step's batch: rank 0's number for it, and its content.
struct BatchAdapter {
  std::uint32_t handle = 0;
  std::uint64_t digest = 0;
};

// SequenceSlice with rank 0's number for its adapter; 0: none.
struct StepSlice {
  std::int32_t context = 0;
  std::vector<std::int32_t> tokens;
  std::vector<BlockIndex> blocks;
  std::uint32_t adapter = 0;
  bool samples = false;
  std::uint64_t draw = 0;
};
struct StepRequest {
  RunMode mode;
  SamplingOptions sampling;
  std::vector<BatchAdapter> adapters;
  std::vector<StepSlice> slices;
};
WireWriter encode(const StepRequest& step);
StepRequest decode_step(std::span<const std::byte> message);

// All changes to a rank's adapters up to now: how many, and a digest of what they were.
struct AdapterState {
  std::uint64_t changes = 0;
  std::uint64_t digest = 0;
};
struct StepReply {
  StepParts parts;
  std::vector<std::int32_t> sampled;
  AdapterState state;
};
WireWriter encode(const StepReply& reply);
StepReply decode_step_reply(std::span<const std::byte> message);

// A context's copy in a worker's host memory, by the number that rank 0 gave it.
struct CopyRequest {
  std::uint64_t copy = 0;
  std::int32_t tokens = 0;
  std::vector<BlockIndex> blocks;
};
WireWriter encode(const CopyRequest& request);
CopyRequest decode_copy(std::span<const std::byte> message);

struct PackRequest {
  std::uint32_t handle = 0;
  std::int32_t width = 0;
  bool whole_model = false;
  bool held = false;  // the worker has its content; otherwise it follows
  std::uint64_t digest = 0;
  std::string name;
};
WireWriter encode(const PackRequest& request);
PackRequest decode_pack(std::span<const std::byte> message);

// Why a command failed.
enum class Failure : std::uint8_t {
  kInternal,  // of our own making
  kInput,     // the spec's, a file's or the machine's fault
  kGroup,     // the ranks no longer agree: none of them can go on
};
WireWriter encode_failure(Failure kind, const std::string& text);
// Throws what it says, with `who` before it.
[[noreturn]] void throw_failure(const std::string& who, std::span<const std::byte> message);

}  // namespace servelab::ranks

#endif  // SERVELAB_BACKEND_RANKS_MESSAGES_H_
