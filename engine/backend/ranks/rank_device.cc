#include "engine/backend/ranks/rank_device.h"

#include <utility>

#include "engine/backend/ranks/adapter_content.h"
#include "engine/backend/ranks/remote_device.h"

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
    return answer(connection, Message::kFailed,
                  encode(FailureText{Failure::kGroup, problem.what()}));
  } catch (const SpecError& problem) {
    return answer(connection, Message::kFailed,
                  encode(FailureText{Failure::kInput, problem.what()}));
  } catch (const std::exception& problem) {
    return answer(connection, Message::kFailed,
                  encode(FailureText{Failure::kInternal, problem.what()}));
  }
  answer(connection, Message::kDone, reply);
}

}  // namespace

Device& RankDevice::opened() const {
  if (device_ == nullptr) throw GroupError("is asked to compute before it has a model");
  return *device_;
}

void RankDevice::serve_step(const Frame& frame, Connection* connection) {
  do_and_answer(connection, [&](WireWriter* reply) {
    switch (static_cast<Message>(frame.kind)) {
      case Message::kPrepare:
        return worker_->prepare(decode<OpenRank>(frame.message));
      case Message::kNameGroup:
        return reply->text(worker_->name_group());
      case Message::kOpen: {
        if (device_ != nullptr) throw GroupError("is given a model and has one");
        const auto open = decode<OpenRank>(frame.message);
        part_ = worker_->part(open);
        device_ = worker_->open(open);
        return;
      }
      case Message::kRun:
        *reply = encode(run(decode<DeviceJob>(frame.message)));
        return;
      case Message::kClose:
        return close();
      default:
        throw GroupError("is sent a command of kind " + std::to_string(frame.kind));
    }
  });
}

void RankDevice::serve_load(const Frame& frame, Connection* connection) {
  do_and_answer(connection, [&](WireWriter*) {
    const auto request = decode<LoadRequest>(frame.message);
    switch (static_cast<Message>(frame.kind)) {
      case Message::kHold:
        return hold(request, connection);
      case Message::kLoad:
        return load(request, connection);
      case Message::kWait:
        return opened().wait(request.load.adapter);
      case Message::kEvict:
        return evict(request.load.adapter);
      default:
        throw GroupError("is sent a load of kind " + std::to_string(frame.kind));
    }
  });
}

void RankDevice::close() {
  {
    const std::lock_guard lock(mutex_);
    names_.clear();
    held_.clear();
    state_ = {};
  }
  device_.reset();
}

// The state is that before the step: rank 0 compares it, whatever the step uses.
StepReply RankDevice::run(const DeviceJob& job) {
  StepReply reply;
  {
    const std::lock_guard lock(mutex_);
    reply.state = state_;
    for (const Sequence& sequence : job.sequences) {
      if (sequence.adapter == kBaseModel || sequence.lora != LoraSite::kDevice) continue;
      if (names_.count(sequence.adapter) > 0) continue;
      throw GroupError("has no adapter " + std::to_string(index(sequence.adapter)) +
                       ", which the batch uses");
    }
  }
  opened().run(job, &reply.result);
  return reply;
}

// --- adapters ---

std::shared_ptr<const LoraWeights> RankDevice::receive(const LoadRequest& request,
                                                       Connection* connection) const {
  return receive_content(connection, part_, request.name, request.digest, Clock::now() + patience_);
}

void RankDevice::hold(const LoadRequest& request, Connection* connection) {
  auto weights = receive(request, connection);
  opened().hold(request.load, weights);
  const std::lock_guard lock(mutex_);
  held_[request.load.adapter] = std::move(weights);
}

void RankDevice::load(const LoadRequest& request, Connection* connection) {
  std::shared_ptr<const LoraWeights> weights;
  if (request.held) {
    const std::lock_guard lock(mutex_);
    weights = held_[request.load.adapter];
    if (weights == nullptr) throw GroupError("does not hold adapter '" + request.name + "'");
  } else {
    weights = receive(request, connection);
  }
  opened().load(request.load, std::move(weights));
  const std::lock_guard lock(mutex_);
  state_ = next_state(state_, request.load.adapter, request.digest);
  names_[request.load.adapter] = request.name;
}

void RankDevice::evict(AdapterId adapter) {
  {
    const std::lock_guard lock(mutex_);
    if (names_.erase(adapter) == 0) throw GroupError("is to drop an adapter that it lacks");
    state_ = next_state(state_, adapter, 0);
  }
  opened().evict(adapter);
}

}  // namespace servelab::ranks
