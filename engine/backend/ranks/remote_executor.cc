#include "engine/backend/ranks/remote_executor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/backend/ranks/adapter_content.h"
#include "engine/core/digest.h"

namespace servelab::ranks {
namespace {

using CopyNumber = std::uint64_t;

// An adapter of the worker's. The executor outlives it.
class RemoteAdapter final : public DeviceAdapter {
 public:
  RemoteAdapter(RemoteExecutor* executor, BatchAdapter place, int rank, Bytes bytes, bool on_host)
      : executor_(executor), place_(place), rank_(rank), bytes_(bytes), on_host_(on_host) {}
  ~RemoteAdapter() override { executor_->drop(place_.handle, on_host_); }
  int rank() const override { return rank_; }
  Bytes bytes() const override { return bytes_; }
  void wait() const override {
    if (!on_host_) executor_->wait_for(place_.handle);
  }
  const BatchAdapter& place() const { return place_; }

 private:
  RemoteExecutor* const executor_;
  const BatchAdapter place_;
  const int rank_;
  const Bytes bytes_;
  const bool on_host_;
};

const BatchAdapter& place_of(const DeviceAdapter& adapter) {
  return static_cast<const RemoteAdapter&>(adapter).place();
}

}  // namespace

AdapterState next_state(const AdapterState& state, std::uint32_t handle, std::uint64_t digest) {
  StreamHash hash;
  hash.add(state.digest);
  hash.add(handle);
  hash.add(digest);
  return {state.changes + 1, hash.value()};
}

void StateLog::add(std::uint32_t handle, std::uint64_t digest) {
  const std::lock_guard lock(mutex_);
  state_ = next_state(state_, handle, digest);
  digests_.push_back(state_.digest);
}

void StateLog::take_back(const AdapterState& before) {
  const std::lock_guard lock(mutex_);
  state_ = before;
  digests_.pop_back();
}

AdapterState StateLog::state() {
  const std::lock_guard lock(mutex_);
  return state_;
}

void StateLog::compare(const AdapterState& theirs) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t first = state_.changes - digests_.size();  // compared already
  if (theirs.changes == 0 && first == 0) return;
  if (theirs.changes < first || theirs.changes > state_.changes) {
    throw GroupError("has changed its adapters " + std::to_string(theirs.changes) +
                     " times, and rank 0 " + std::to_string(state_.changes) + " times");
  }
  if (theirs.changes == first) return;
  const std::size_t at = static_cast<std::size_t>(theirs.changes - first) - 1;
  if (digests_[at] != theirs.digest) {
    throw GroupError("holds other adapters than rank 0 after " + std::to_string(theirs.changes) +
                     " loads and evictions");
  }
  digests_.erase(digests_.begin(), digests_.begin() + static_cast<std::ptrdiff_t>(at) + 1);
}

RemoteExecutor::RemoteExecutor(RankGroup* group, Peer* peer, const ModelConfig& model,
                               const OpenRank& open)
    : group_(group), peer_(peer), model_(model), limits_(open.plan.limits) {
  const auto reply = call(Purpose::kSteps, Message::kOpen, encode(open), group_->set_up_deadline());
  WireReader in(reply);
  facts_.kv_bytes_per_token = in.i64();
}

RemoteExecutor::~RemoteExecutor() {
  try {
    call(Purpose::kSteps, Message::kClose, {}, group_->set_up_deadline());
  } catch (const std::exception& problem) {
    group_->fail(problem.what());
  }
}

std::vector<std::byte> RemoteExecutor::call(Purpose purpose, Message kind,
                                            const WireWriter& message, Deadline deadline,
                                            const std::function<void(Connection*)>& content) const {
  try {
    return peer_->call(purpose, kind, message, deadline, content);
  } catch (const GroupError& problem) {
    group_->fail(problem.what());
    throw;
  }
}

std::vector<std::byte> RemoteExecutor::step(Message kind, const WireWriter& message) const {
  return call(Purpose::kSteps, kind, message, group_->step_deadline());
}

// --- adapters ---

void RemoteExecutor::hold_on_host(std::shared_ptr<const LoraWeights> weights, int width) {
  PackRequest request;
  request.width = width;
  request.digest = content_digest(*weights);
  request.name = weights->name();
  const Deadline deadline = group_->set_up_deadline();
  call(Purpose::kLoads, Message::kHold, encode(request), deadline,
       [&](Connection* to) { send_content(*weights, to, deadline); });
  const std::lock_guard lock(mutex_);
  digests_[weights.get()] = request.digest;
}

PackRequest RemoteExecutor::request_for(const LoraWeights& weights) {
  PackRequest request;
  request.name = weights.name();
  {
    const std::lock_guard lock(mutex_);
    request.handle = next_handle_++;
    const auto found = digests_.find(&weights);
    request.held = found != digests_.end();
    if (request.held) request.digest = found->second;
  }
  if (!request.held) request.digest = content_digest(weights);
  return request;
}

std::unique_ptr<DeviceAdapter> RemoteExecutor::host_adapter(
    std::shared_ptr<const LoraWeights> weights) {
  const PackRequest request = request_for(*weights);
  const Deadline deadline = group_->step_deadline();
  const auto send = [&](Connection* to) { send_content(*weights, to, deadline); };
  call(Purpose::kSteps, Message::kHostAdapter, encode(request), deadline,
       request.held ? std::function<void(Connection*)>() : std::function(send));
  return std::make_unique<RemoteAdapter>(this, BatchAdapter{request.handle, request.digest},
                                         weights->rank(), 0, true);
}

std::unique_ptr<DeviceAdapter> RemoteExecutor::pack(const LoraWeights& weights, int width,
                                                    bool whole_model) {
  PackRequest request = request_for(weights);
  request.width = width;
  request.whole_model = whole_model;
  const Deadline deadline = group_->set_up_deadline();
  const auto send = [&](Connection* to) { send_content(weights, to, deadline); };
  const std::lock_guard lock(changing_);
  const AdapterState before = log_.state();
  log_.add(request.handle, request.digest);  // before a step can tell of it
  std::vector<std::byte> reply;
  try {
    reply = call(Purpose::kLoads, Message::kPack, encode(request), deadline,
                 request.held ? std::function<void(Connection*)>() : std::function(send));
  } catch (...) {
    log_.take_back(before);
    throw;
  }
  WireReader in(reply);
  const int rank = in.i32();
  const Bytes bytes = in.i64();
  return std::make_unique<RemoteAdapter>(this, BatchAdapter{request.handle, request.digest}, rank,
                                         bytes, false);
}

std::unique_ptr<DeviceAdapter> RemoteExecutor::pack_adapter(const LoraWeights& weights, int width) {
  return pack(weights, width, false);
}

std::unique_ptr<DeviceAdapter> RemoteExecutor::pack_whole_model(const LoraWeights& weights) {
  return pack(weights, 0, true);
}

void RemoteExecutor::drop(std::uint32_t handle, bool on_host) noexcept {
  try {
    WireWriter message;
    message.u32(handle);
    if (on_host) {
      step(Message::kDropHostAdapter, message);
      return;
    }
    const std::lock_guard lock(changing_);
    log_.add(handle, 0);
    call(Purpose::kLoads, Message::kDrop, message, group_->step_deadline());
  } catch (const std::exception& problem) {
    group_->fail(problem.what());
  }
}

void RemoteExecutor::wait_for(std::uint32_t handle) const {
  WireWriter message;
  message.u32(handle);
  call(Purpose::kLoads, Message::kWait, message, group_->set_up_deadline());
}

// --- steps ---

StepParts RemoteExecutor::run(std::span<const SequenceSlice> slices, const RunMode& mode,
                              const SamplingOptions& sampling, std::vector<std::int32_t>* sampled) {
  StepRequest request;
  request.mode = mode;
  request.sampling = sampling;
  for (const SequenceSlice& from : slices) {
    StepSlice& slice = request.slices.emplace_back();
    slice.context = from.context;
    slice.tokens.assign(from.tokens.begin(), from.tokens.end());
    slice.blocks.assign(from.blocks.begin(), from.blocks.end());
    slice.samples = from.samples;
    slice.draw = from.draw;
    if (from.adapter == nullptr) continue;
    const BatchAdapter& place = place_of(*from.adapter);
    slice.adapter = place.handle;
    const auto same = [&place](const BatchAdapter& a) { return a.handle == place.handle; };
    if (std::none_of(request.adapters.begin(), request.adapters.end(), same)) {
      request.adapters.push_back(place);
    }
  }
  StepReply reply = decode_step_reply(step(Message::kRun, encode(request)));
  try {
    log_.compare(reply.state);
  } catch (const GroupError& problem) {
    const std::string text = peer_->name() + ": " + problem.what();
    group_->fail(text);
    throw GroupError(text);
  }
  *sampled = std::move(reply.sampled);
  return reply.parts;
}

std::span<const float> RemoteExecutor::logits() {
  const auto reply = step(Message::kLogits, {});
  WireReader in(reply);
  logits_.resize(in.count(sizeof(float), "logits"));
  for (float& value : logits_) value = std::bit_cast<float>(in.u32());
  in.end();
  return logits_;
}

void RemoteExecutor::merge(const DeviceAdapter& adapter) {
  WireWriter message;
  message.u32(place_of(adapter).handle);
  message.u64(place_of(adapter).digest);
  step(Message::kMerge, message);
}

void RemoteExecutor::unmerge() { step(Message::kUnmerge, {}); }

// --- swapping ---

std::size_t RemoteExecutor::context_bytes(int /*tokens*/) const { return sizeof(CopyNumber); }

HostMemory RemoteExecutor::host_memory(std::size_t bytes) {
  const std::size_t size = std::max(bytes, sizeof(CopyNumber));
  CopyNumber number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = next_copy_++;
  }
  HostMemory memory(new std::byte[size], [this, number](std::byte* given) {
    delete[] given;
    try {
      WireWriter message;
      message.u64(number);
      peer_->post(Purpose::kSteps, Message::kDropCopy, message);
    } catch (const std::exception& problem) {
      group_->fail(peer_->name() + ": " + problem.what());
    }
  });
  std::memcpy(memory.get(), &number, sizeof number);
  return memory;
}

void RemoteExecutor::send_copy(Message kind, std::span<const BlockIndex> blocks, int tokens,
                               const std::byte* host) {
  CopyRequest request;
  std::memcpy(&request.copy, host, sizeof request.copy);
  request.tokens = tokens;
  request.blocks.assign(blocks.begin(), blocks.end());
  step(kind, encode(request));
}

void RemoteExecutor::copy_out(std::span<const BlockIndex> blocks, int tokens, std::byte* host) {
  send_copy(Message::kCopyOut, blocks, tokens, host);
}

void RemoteExecutor::copy_in(std::span<const BlockIndex> blocks, int tokens,
                             const std::byte* host) {
  send_copy(Message::kCopyIn, blocks, tokens, host);
}

void RemoteExecutor::finish_copies() { step(Message::kFinishCopies, {}); }

}  // namespace servelab::ranks
