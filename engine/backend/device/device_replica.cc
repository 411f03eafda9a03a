#include "engine/backend/device/device_replica.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <span>
#include <utility>

#include "engine/core/check.h"

namespace servelab {
namespace {

TimeNs clock_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

}  // namespace

DeviceReplica::DeviceReplica(ReplicaId id, RealTimeline* timeline, AdapterSource* adapters,
                             std::size_t count, std::unique_ptr<Executor> executor,
                             const Settings& settings)
    : id_(id),
      timeline_(timeline),
      source_(adapters),
      executor_(std::move(executor)),
      settings_(settings),
      resident_(count) {
  if (!settings_.adapters_as_models) {
    for (const auto& weights : source_->kept()) {
      executor_->hold_on_host(weights, settings_.adapter_width);
    }
  }
  device_ = std::thread([this] { lead(); });
  loader_ = std::thread([this] { serve_loads(); });
}

DeviceReplica::~DeviceReplica() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  device_.join();
  loader_.join();
}

void DeviceReplica::begin_load(AdapterId adapter) {
  timeline_->expect_external(1);
  {
    const std::lock_guard lock(mutex_);
    loads_.push_back(adapter);
  }
  changed_.notify_all();
}

// From here on steps may use it; they wait on the device for what has not arrived.
std::shared_ptr<const DeviceAdapter> DeviceReplica::bring(AdapterId adapter,
                                                          const LoraWeights& weights) {
  std::shared_ptr<const DeviceAdapter> packed =
      settings_.adapters_as_models ? executor_->pack_whole_model(weights)
                                   : executor_->pack_adapter(weights, settings_.adapter_width);
  {
    const std::lock_guard lock(mutex_);
    resident_[index(adapter)] = packed;
  }
  changed_.notify_all();
  return packed;
}

void DeviceReplica::load_now(AdapterId adapter) {
  const auto weights = source_->load(adapter);
  bring(adapter, *weights)->wait();
}

void DeviceReplica::evict(AdapterId adapter) {
  const std::lock_guard lock(mutex_);
  SL_CHECK(resident_[index(adapter)] != nullptr, "evicting an adapter that the device lacks");
  resident_[index(adapter)].reset();
}

void DeviceReplica::submit(DeviceJob job) {
  timeline_->expect_external(1);
  job.submitted = clock_ns();
  {
    const std::lock_guard lock(mutex_);
    SL_CHECK(!job_.has_value(), "one step at a time");
    job_.emplace(std::move(job));
  }
  changed_.notify_all();
}

void DeviceReplica::serve_loads() {
  for (;;) {
    AdapterId adapter;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || !loads_.empty(); });
      if (stop_) return;
      adapter = loads_.front();
      loads_.pop_front();
    }
    try {
      load_now(adapter);
    } catch (...) {
      timeline_->fail(std::current_exception());
      return;
    }
    const std::uint32_t what =
        settings_.adapters_as_models
            ? load_subject(static_cast<ModelId>(static_cast<std::uint16_t>(adapter)))
            : load_subject(adapter);
    timeline_->post_now(EventKind::kLoadDone, pack_subject(id_, what));
  }
}

void DeviceReplica::lead() {
  executor_->enter_thread();
  for (;;) {
    DeviceJob job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || job_.has_value(); });
      if (stop_) return;
      job = std::move(*job_);
      job_.reset();
    }
    try {
      carry_out(&job);
    } catch (...) {
      timeline_->fail(std::current_exception());
      return;
    }
    timeline_->post_now(EventKind::kStepDone, pack_subject(id_, job.slot));
  }
}

std::shared_ptr<const DeviceAdapter> DeviceReplica::adapter(AdapterId id) {
  const std::lock_guard lock(mutex_);
  return resident_[index(id)];
}

// From one step to the next as long as steps use it. The weights are in host memory, so that load()
// only hands them over.
const DeviceAdapter* DeviceReplica::host_adapter(AdapterId id) {
  std::unique_ptr<const DeviceAdapter>& held = host_adapters_[id];
  if (held == nullptr) held = executor_->host_adapter(source_->load(id));
  return held.get();
}

void DeviceReplica::drop_host_adapters(const DeviceJob& job) {
  std::erase_if(host_adapters_, [&](const auto& held) {
    return std::find(job.host_adapters.begin(), job.host_adapters.end(), held.first) ==
           job.host_adapters.end();
  });
}

// Returns the time that loads in progress held the step back.
TimeNs DeviceReplica::wait_for_adapters(const DeviceJob& job) {
  const TimeNs begin = clock_ns();
  std::unique_lock lock(mutex_);
  bool waited = false;
  const auto ready = [&] {
    const auto there = [this](AdapterId id) {
      return id == kBaseModel || resident_[index(id)] != nullptr;
    };
    bool all = there(job.merge);
    for (const AdapterId id : job.adapters) all = all && there(id);
    waited = waited || !all;
    return all || stop_;
  };
  changed_.wait(lock, ready);
  return waited ? clock_ns() - begin : 0;
}

void DeviceReplica::move_kv(const DeviceJob& job) {
  for (const RequestId id : job.dropped) host_kv_.erase(id);
  for (const KvMove& move : job.moves) {
    HostMemory& host = host_kv_[move.request];
    if (move.to_host) {
      host = executor_->host_memory(executor_->context_bytes(move.tokens));
      executor_->copy_out(move.blocks, move.tokens, host.get());
    } else {
      SL_CHECK(host != nullptr, "swapping in what was never swapped out");
      executor_->copy_in(move.blocks, move.tokens, host.get());
      spent_.push_back(std::move(host));
      host_kv_.erase(move.request);
    }
  }
}

void DeviceReplica::switch_weights(const DeviceJob& job) {
  if (job.unmerge != kBaseModel) executor_->unmerge();
  if (job.merge != kBaseModel) executor_->merge(*adapter(job.merge));
}

void DeviceReplica::carry_out(DeviceJob* job) {
  StepTiming timing;
  timing.load_wait = wait_for_adapters(*job);
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return;
  }
  const TimeNs begin = clock_ns();
  move_kv(*job);
  const TimeNs moved = clock_ns();
  if (!job->moves.empty()) timing.swap = moved - begin;
  switch_weights(*job);
  const TimeNs switched = clock_ns();
  if (job->merge != kBaseModel || job->unmerge != kBaseModel) timing.switching = switched - moved;

  drop_host_adapters(*job);
  std::vector<SequenceSlice> slices;
  std::vector<std::shared_ptr<const DeviceAdapter>> held;  // until the step ends
  slices.reserve(job->sequences.size());
  for (const DeviceJob::Sequence& sequence : job->sequences) {
    SequenceSlice& slice = slices.emplace_back();
    slice.context = sequence.context;
    slice.tokens = std::span(*sequence.history)
                       .subspan(static_cast<std::size_t>(sequence.context),
                                static_cast<std::size_t>(sequence.tokens));
    slice.blocks = std::span(job->blocks).subspan(sequence.first_block, sequence.block_count);
    slice.samples = sequence.samples;
    slice.draw = static_cast<std::uint64_t>(index(sequence.request)) << 32 |
                 static_cast<std::uint64_t>(sequence.context + sequence.tokens);
    if (sequence.adapter == kBaseModel) continue;
    if (sequence.on_host) {
      slice.adapter = host_adapter(sequence.adapter);
    } else {
      held.push_back(adapter(sequence.adapter));
      slice.adapter = held.back().get();
    }
  }
  RunMode mode = job->mode;
  mode.measure_parts = settings_.measure_parts;
  const StepParts parts = executor_->run(slices, mode, settings_.sampling, &sampled_);
  spent_.clear();
  std::size_t next = 0;
  for (const DeviceJob::Sequence& sequence : job->sequences) {
    if (!sequence.samples) continue;
    const std::int32_t token = sampled_[next++];
    if (token < 0) {
      throw SpecError(
          "the model's logits are not numbers (NaN): its weights, or an adapter's, are "
          "out of range");
    }
    sequence.history->push_back(token);
  }
  timing.cost.dense = parts.dense;
  timing.cost.attention = parts.attention;
  timing.cost.lora = parts.lora;
  // The rest: waking the device thread, tokens in and out, the team's start and end.
  timing.cost.host = clock_ns() - job->submitted - timing.load_wait - timing.swap -
                     timing.switching - parts.dense - parts.attention - parts.lora;
  timing_ = timing;
}

}  // namespace servelab
