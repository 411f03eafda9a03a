#include "engine/backend/ranks/rank_device.h"

#include <utility>

#include "engine/backend/ranks/adapter_content.h"
#include "engine/backend/ranks/remote_executor.h"

namespace servelab::ranks {
namespace {

void answer(Connection* connection, Message kind, const WireWriter& reply) {
  connection->send(static_cast<std::uint8_t>(kind), reply);
}

// Does `work`, which fills the reply, and answers. The ranks cannot go on when their agreement is
// broken; everything else is rank 0's to judge.
template <class Work>
void do_and_answer(Connection* connection, const Work& work) {
  WireWriter reply;
  try {
    work(&reply);
  } catch (const GroupError& problem) {
    return answer(connection, Message::kFailed, encode_failure(Failure::kGroup, problem.what()));
  } catch (const SpecError& problem) {
    return answer(connection, Message::kFailed, encode_failure(Failure::kInput, problem.what()));
  } catch (const std::exception& problem) {
    return answer(connection, Message::kFailed, encode_failure(Failure::kInternal, problem.what()));
  }
  answer(connection, Message::kDone, reply);
}

std::uint32_t decode_handle(const Frame& frame) {
  WireReader in(frame.message);
  const std::uint32_t handle = in.u32();
  in.end();
  return handle;
}

}  // namespace

Executor& RankDevice::executor() const {
  if (executor_ == nullptr) throw GroupError("is asked to compute before it has a model");
  return *executor_;
}

void RankDevice::serve_step(const Frame& frame, Connection* connection) {
  if (frame.kind == static_cast<std::uint8_t>(Message::kDropCopy)) {
    WireReader in(frame.message);
    copies_.erase(in.u64());
    return;
  }
  do_and_answer(connection, [&](WireWriter* reply) {
    switch (static_cast<Message>(frame.kind)) {
      case Message::kPrepare:
        return device_->prepare(decode_open(frame.message));
      case Message::kNameGroup:
        return reply->text(device_->name_group());
      case Message::kOpen:
        return open(frame, reply);
      case Message::kRun:
        return run(frame, reply);
      case Message::kLogits: {
        const std::span<const float> logits = executor().logits();
        reply->u32(static_cast<std::uint32_t>(logits.size()));
        for (const float value : logits) reply->u32(std::bit_cast<std::uint32_t>(value));
        return;
      }
      case Message::kMerge:
        return merge(frame);
      case Message::kUnmerge:
        return executor().unmerge();
      case Message::kCopyOut:
        return copy(frame, true);
      case Message::kCopyIn:
        return copy(frame, false);
      case Message::kFinishCopies:
        return executor().finish_copies();
      case Message::kHostAdapter:
        return put_on_host(decode_pack(frame.message), connection);
      case Message::kDropHostAdapter:
        return drop(decode_handle(frame), true);
      case Message::kClose:
        return close();
      default:
        throw GroupError("is sent a command of kind " + std::to_string(frame.kind));
    }
  });
}

void RankDevice::serve_load(const Frame& frame, Connection* connection) {
  do_and_answer(connection, [&](WireWriter* reply) {
    switch (static_cast<Message>(frame.kind)) {
      case Message::kHold:
        return hold(decode_pack(frame.message), connection);
      case Message::kPack:
        return pack(decode_pack(frame.message), connection, reply);
      case Message::kWait:
        return wait(decode_handle(frame));
      case Message::kDrop:
        return drop(decode_handle(frame), false);
      default:
        throw GroupError("is sent a load of kind " + std::to_string(frame.kind));
    }
  });
}

// --- the model ---

void RankDevice::open(const Frame& frame, WireWriter* reply) {
  if (executor_ != nullptr) throw GroupError("is given a model and has one");
  opened_ = decode_open(frame.message);
  part_ = device_->part(opened_);
  executor_ = device_->open(opened_);
  executor_->enter_thread();
  reply->i64(executor_->kv_bytes_per_token());
}

void RankDevice::close() {
  copies_.clear();
  {
    const std::lock_guard lock(mutex_);
    adapters_.clear();
    held_.clear();
    state_ = {};
  }
  executor_.reset();
}

// --- steps ---

const DeviceAdapter* RankDevice::find(const BatchAdapter& place) {
  const std::lock_guard lock(mutex_);
  const auto found = adapters_.find(place.handle);
  if (found == adapters_.end()) {
    throw GroupError("has no adapter in slot " + std::to_string(place.handle) +
                     ", which the batch uses");
  }
  if (found->second.digest != place.digest) {
    throw GroupError("has adapter '" + found->second.name + "' in slot " +
                     std::to_string(place.handle) + ", where the batch uses another one");
  }
  return found->second.on_device.get();
}

void RankDevice::run(const Frame& frame, WireWriter* reply) {
  const StepRequest request = decode_step(frame.message);
  std::unordered_map<std::uint32_t, const DeviceAdapter*> adapters;
  for (const BatchAdapter& place : request.adapters) adapters[place.handle] = find(place);
  std::vector<SequenceSlice> slices;
  slices.reserve(request.slices.size());
  for (const StepSlice& from : request.slices) {
    SequenceSlice& slice = slices.emplace_back();
    slice.context = from.context;
    slice.tokens = from.tokens;
    slice.blocks = from.blocks;
    slice.samples = from.samples;
    slice.draw = from.draw;
    if (from.adapter == 0) continue;
    const auto found = adapters.find(from.adapter);
    if (found == adapters.end()) damaged("a slice's adapter is not in the batch");
    slice.adapter = found->second;
  }
  StepReply step;
  {
    const std::lock_guard lock(mutex_);
    step.state = state_;
  }
  step.parts = executor().run(slices, request.mode, request.sampling, &step.sampled);
  *reply = encode(step);
}

void RankDevice::merge(const Frame& frame) {
  WireReader in(frame.message);
  BatchAdapter place;
  place.handle = in.u32();
  place.digest = in.u64();
  in.end();
  executor().merge(*find(place));
}

void RankDevice::copy(const Frame& frame, bool out) {
  const CopyRequest request = decode_copy(frame.message);
  Executor& device = executor();
  if (out) {
    HostMemory& memory = copies_[request.copy];
    memory = device.host_memory(device.context_bytes(request.tokens));
    return device.copy_out(request.blocks, request.tokens, memory.get());
  }
  const auto found = copies_.find(request.copy);
  if (found == copies_.end()) throw GroupError("has no copy of a context that comes back");
  device.copy_in(request.blocks, request.tokens, found->second.get());
}

// --- adapters ---

void RankDevice::hold(const PackRequest& request, Connection* connection) {
  auto weights =
      receive_content(connection, part_, request.name, request.digest, Clock::now() + patience_);
  executor().hold_on_host(weights, request.width);
  const std::lock_guard lock(mutex_);
  held_[request.digest] = std::move(weights);
}

std::shared_ptr<const LoraWeights> RankDevice::weights_of(const PackRequest& request,
                                                          Connection* connection) {
  if (!request.held) {
    return receive_content(connection, part_, request.name, request.digest,
                           Clock::now() + patience_);
  }
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(request.digest);
  if (found == held_.end()) throw GroupError("does not hold adapter '" + request.name + "'");
  return found->second;
}

// Not among the changes that ranks compare: these come between steps, and those while steps run.
void RankDevice::put_on_host(const PackRequest& request, Connection* connection) {
  Adapter adapter{request.name, request.digest, nullptr, nullptr};
  adapter.on_device = executor().host_adapter(weights_of(request, connection));
  const std::lock_guard lock(mutex_);
  adapters_[request.handle] = std::move(adapter);
}

void RankDevice::pack(const PackRequest& request, Connection* connection, WireWriter* reply) {
  Adapter adapter{request.name, request.digest, weights_of(request, connection), nullptr};
  adapter.on_device = request.whole_model
                          ? executor().pack_whole_model(*adapter.weights)
                          : executor().pack_adapter(*adapter.weights, request.width);
  reply->i32(adapter.on_device->rank());
  reply->i64(adapter.on_device->bytes());
  const std::lock_guard lock(mutex_);
  state_ = next_state(state_, request.handle, request.digest);
  adapters_[request.handle] = std::move(adapter);
}

void RankDevice::wait(std::uint32_t handle) {
  const DeviceAdapter* adapter = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto found = adapters_.find(handle);
    if (found == adapters_.end()) throw GroupError("is to wait for an adapter that it lacks");
    adapter = found->second.on_device.get();
  }
  adapter->wait();
  const std::lock_guard lock(mutex_);
  adapters_[handle].weights.reset();
}

void RankDevice::drop(std::uint32_t handle, bool on_host) {
  Adapter gone;
  {
    const std::lock_guard lock(mutex_);
    const auto found = adapters_.find(handle);
    if (found == adapters_.end()) throw GroupError("is to drop an adapter that it lacks");
    gone = std::move(found->second);
    adapters_.erase(found);
    if (!on_host) state_ = next_state(state_, handle, 0);
  }
  gone.on_device.reset();
}

}  // namespace servelab::ranks
