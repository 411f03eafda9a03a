#include "engine/backend/device/local_device.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "engine/core/check.h"

namespace servelab {
namespace {

TimeNs clock_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

std::string text_of(AdapterId adapter) { return "adapter " + std::to_string(index(adapter)); }

}  // namespace

// --- adapters ---

void LocalDevice::hold(const Load& load, std::shared_ptr<const LoraWeights> weights) {
  prepare(load, weights);
  const std::lock_guard lock(mutex_);
  held_.insert_or_assign(load.adapter, std::move(weights));
}

void LocalDevice::load(const Load& load, std::shared_ptr<const LoraWeights> weights) {
  std::shared_ptr<const DeviceAdapter> adapter = pack(load, *weights);
  const std::lock_guard lock(mutex_);
  residents_.insert_or_assign(load.adapter,
                              Resident{std::move(weights), std::move(adapter), false});
}

void LocalDevice::wait(AdapterId adapter) {
  resident(adapter)->wait();
  const std::lock_guard lock(mutex_);
  residents_[adapter].weights.reset();
  residents_[adapter].arrived = true;
}

void LocalDevice::evict(AdapterId adapter) {
  Resident gone;  // given back outside of the lock
  const std::lock_guard lock(mutex_);
  const auto found = residents_.find(adapter);
  SL_CHECK(found != residents_.end(), text_of(adapter) + " is evicted and is not on the device");
  gone = std::move(found->second);
  residents_.erase(found);
}

std::shared_ptr<const DeviceAdapter> LocalDevice::resident(AdapterId adapter) {
  const std::lock_guard lock(mutex_);
  const auto found = residents_.find(adapter);
  SL_CHECK(found != residents_.end(), text_of(adapter) + " is used and is not on the device");
  return found->second.adapter;
}

const DeviceAdapter* LocalDevice::arrived(AdapterId adapter) {
  const std::lock_guard lock(mutex_);
  const auto found = residents_.find(adapter);
  if (found == residents_.end() || !found->second.arrived) return nullptr;
  return in_use_.emplace_back(found->second.adapter).get();
}

// Packed from one job to the next as long as jobs use it.
const DeviceAdapter* LocalDevice::on_host(AdapterId adapter) {
  std::unique_ptr<const DeviceAdapter>& packed = on_host_[adapter];
  if (packed != nullptr) return packed.get();
  std::shared_ptr<const LoraWeights> weights;
  {
    const std::lock_guard lock(mutex_);
    const auto held = held_.find(adapter);
    SL_CHECK(held != held_.end(), text_of(adapter) + " is used and is not in host memory");
    weights = held->second;
  }
  packed = pack_on_host(*weights);
  return packed.get();
}

void LocalDevice::drop_unused(const DeviceJob& job) {
  std::erase_if(on_host_, [&job](const auto& packed) {
    return std::none_of(job.sequences.begin(), job.sequences.end(), [&](const Sequence& s) {
      return s.lora == LoraSite::kHost && s.adapter == packed.first;
    });
  });
}

void LocalDevice::give_back_all() {
  residents_.clear();
  on_host_.clear();
  contexts_.clear();
  spent_.clear();
  in_use_.clear();
}

// --- jobs ---

void LocalDevice::move_contexts(const DeviceJob& job) {
  for (const RequestId id : job.dropped) contexts_.erase(id);
  for (const KvMove& move : job.moves) {
    if (move.to_host) {
      contexts_[move.request] = copy_out(move);
      continue;
    }
    const auto found = contexts_.find(move.request);
    SL_CHECK(found != contexts_.end(), "swapping in what was never swapped out");
    copy_in(move, found->second.get());
    spent_.push_back(std::move(found->second));
    contexts_.erase(found);
  }
}

void LocalDevice::run(const DeviceJob& job, DeviceResult* result) {
  enter_thread();
  const TimeNs begin = clock_ns();
  move_contexts(job);
  const TimeNs moved = clock_ns();
  result->moving = job.moves.empty() ? 0 : moved - begin;
  if (job.unmerge) unmerge();
  if (job.merge != kBaseModel) merge(*resident(job.merge));
  const bool switches = job.unmerge || job.merge != kBaseModel;
  result->switching = switches ? clock_ns() - moved : 0;

  drop_unused(job);
  const auto use = [this](AdapterId adapter) -> const DeviceAdapter* {
    if (adapter == kBaseModel) return nullptr;
    return in_use_.emplace_back(resident(adapter)).get();
  };
  std::vector<const DeviceAdapter*> adapters;
  adapters.reserve(job.sequences.size());
  for (const Sequence& sequence : job.sequences) {
    const bool host = sequence.lora == LoraSite::kHost && sequence.adapter != kBaseModel;
    adapters.push_back(host ? on_host(sequence.adapter) : use(sequence.adapter));
  }
  result->parts = {};
  result->host_layers = 0;
  result->host_work = {};
  result->sampled.clear();
  result->logits.clear();
  forward(job, adapters, use(job.folded), result);
  spent_.clear();
  in_use_.clear();
}

}  // namespace servelab
