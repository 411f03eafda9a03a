#include "engine/backend/ranks/remote_device.h"

#include <utility>

#include "engine/backend/ranks/adapter_content.h"
#include "engine/core/digest.h"

namespace servelab::ranks {

AdapterState next_state(const AdapterState& state, AdapterId adapter, std::uint64_t digest) {
  StreamHash hash;
  hash.add(state.digest);
  hash.add(index(adapter));
  hash.add(digest);
  return {state.changes + 1, hash.value()};
}

void StateLog::add(AdapterId adapter, std::uint64_t digest) {
  const std::lock_guard lock(mutex_);
  state_ = next_state(state_, adapter, digest);
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

RemoteDevice::RemoteDevice(RankGroup* group, Peer* peer, const ModelConfig& model,
                           const OpenRank& open)
    : Device(model, open.plan.limits), group_(group), peer_(peer) {
  call(Purpose::kSteps, Message::kOpen, encode(open), group_->deadline());
}

RemoteDevice::~RemoteDevice() {
  try {
    call(Purpose::kSteps, Message::kClose, {}, group_->deadline());
  } catch (const std::exception& problem) {
    group_->fail(problem.what());
  }
}

std::vector<std::byte> RemoteDevice::call(Purpose purpose, Message kind, const WireWriter& message,
                                          Deadline deadline,
                                          const std::function<void(Connection*)>& content) const {
  try {
    return peer_->call(purpose, kind, message, deadline, content);
  } catch (const GroupError& problem) {
    group_->fail(problem.what());
    throw;
  }
}

// --- adapters ---

// With the content, where the worker does not hold it.
void RemoteDevice::send(Message kind, const LoadRequest& request,
                        const LoraWeights& content) const {
  const Deadline deadline = group_->deadline();
  call(Purpose::kLoads, kind, encode(request), deadline, [&](Connection* to) {
    if (!request.held) send_content(content, to, deadline);
  });
}

void RemoteDevice::hold(const Load& load, std::shared_ptr<const LoraWeights> weights) {
  const LoadRequest request{load, false, content_digest(*weights), weights->name()};
  send(Message::kHold, request, *weights);
  held_[load.adapter] = request.digest;
}

void RemoteDevice::load(const Load& load, std::shared_ptr<const LoraWeights> weights) {
  const auto held = held_.find(load.adapter);
  const bool there = held != held_.end();
  const LoadRequest request{load, there, there ? held->second : content_digest(*weights),
                            weights->name()};
  const std::lock_guard lock(changing_);
  const AdapterState before = log_.state();
  log_.add(load.adapter, request.digest);  // before a step can tell of it
  try {
    send(Message::kLoad, request, *weights);
  } catch (...) {
    log_.take_back(before);
    throw;
  }
}

void RemoteDevice::wait(AdapterId adapter) {
  const LoadRequest request{{adapter}, true, 0, ""};
  call(Purpose::kLoads, Message::kWait, encode(request), group_->deadline());
}

void RemoteDevice::evict(AdapterId adapter) {
  const LoadRequest request{{adapter}, true, 0, ""};
  const std::lock_guard lock(changing_);
  log_.add(adapter, 0);
  call(Purpose::kLoads, Message::kEvict, encode(request), group_->deadline());
}

// --- jobs ---

void RemoteDevice::run(const DeviceJob& job, DeviceResult* result) {
  auto reply =
      decode<StepReply>(call(Purpose::kSteps, Message::kRun, encode(job), group_->deadline()));
  try {
    log_.compare(reply.state);
  } catch (const GroupError& problem) {
    const std::string text = peer_->name() + ": " + problem.what();
    group_->fail(text);
    throw GroupError(text);
  }
  *result = std::move(reply.result);
}

}  // namespace servelab::ranks
