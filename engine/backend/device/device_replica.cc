#include "engine/backend/device/device_replica.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "engine/core/check.h"
#include "engine/core/threads.h"

namespace servelab {
namespace {

TimeNs clock_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

}  // namespace

DeviceReplica::DeviceReplica(ReplicaId id, RealTimeline* timeline, AdapterSource* adapters,
                             std::size_t count, std::unique_ptr<Device> device,
                             const Settings& settings)
    : id_(id),
      timeline_(timeline),
      source_(adapters),
      device_(std::move(device)),
      settings_(settings),
      usable_(count) {
  const auto kept = source_->kept();
  for (std::size_t i = 0; i < kept.size() && !settings_.folds_adapters; ++i) {
    device_->hold(load_of(static_cast<AdapterId>(i)), kept[i]);
  }
  threads_ = start_threads(
      2, [this](int thread) { thread == 0 ? lead() : serve_loads(); }, [this] { stop(); });
}

void DeviceReplica::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
}

DeviceReplica::~DeviceReplica() {
  stop();
  for (std::thread& thread : threads_) thread.join();
}

Load DeviceReplica::load_of(AdapterId adapter) const {
  return {adapter, settings_.adapter_width, settings_.folds_adapters};
}

void DeviceReplica::begin_load(AdapterId adapter) {
  timeline_->expect_external(1);
  {
    const std::lock_guard lock(mutex_);
    loads_.push_back(adapter);
  }
  changed_.notify_all();
}

void DeviceReplica::load_now(AdapterId adapter) {
  device_->load(load_of(adapter), source_->load(adapter));
  if (!settings_.by_layer) device_->wait(adapter);
  {
    const std::lock_guard lock(mutex_);
    usable_[index(adapter)] = true;
  }
  changed_.notify_all();
  if (settings_.by_layer) device_->wait(adapter);
}

void DeviceReplica::evict(AdapterId adapter) {
  {
    const std::lock_guard lock(mutex_);
    usable_[index(adapter)] = false;
  }
  device_->evict(adapter);
}

void DeviceReplica::submit(std::uint32_t slot, DeviceJob job) {
  timeline_->expect_external(1);
  {
    const std::lock_guard lock(mutex_);
    SL_CHECK(!job_.has_value(), "one step at a time");
    job_.emplace(Submitted{slot, clock_ns(), std::move(job)});
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
        settings_.folds_adapters
            ? load_subject(static_cast<ModelId>(static_cast<std::uint16_t>(adapter)))
            : load_subject(adapter);
    timeline_->post_now(EventKind::kLoadDone, pack_subject(id_, what));
  }
}

void DeviceReplica::lead() {
  for (;;) {
    Submitted submitted;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || job_.has_value(); });
      if (stop_) return;
      submitted = std::move(*job_);
      job_.reset();
    }
    try {
      carry_out(submitted);
    } catch (...) {
      timeline_->fail(std::current_exception());
      return;
    }
    timeline_->post_now(EventKind::kStepDone, pack_subject(id_, submitted.slot));
  }
}

// Returns the time that loads in progress held the step back.
TimeNs DeviceReplica::wait_for_adapters(const DeviceJob& job) {
  const TimeNs begin = clock_ns();
  bool waited = false;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    const auto usable = [this](AdapterId id) { return id == kBaseModel || usable_[index(id)]; };
    const bool all = usable(job.merge) && usable(job.folded) &&
                     std::all_of(job.sequences.begin(), job.sequences.end(), [&](const auto& s) {
                       return s.lora != LoraSite::kDevice || usable(s.adapter);
                     });
    waited = waited || !all;
    return all || stop_;
  });
  return waited ? clock_ns() - begin : 0;
}

void DeviceReplica::carry_out(const Submitted& submitted) {
  StepTiming timing;
  timing.load_wait = wait_for_adapters(submitted.job);
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return;
  }
  device_->run(submitted.job, &result_);
  const auto& sampled = result_.sampled;
  if (std::find(sampled.begin(), sampled.end(), -1) != sampled.end()) {
    throw SpecError(
        "the model's logits are not numbers (NaN): its weights, or an adapter's, are out of range");
  }
  timing.swap = result_.moving;
  timing.switching = result_.switching;
  timing.cost.dense = result_.parts.dense;
  timing.cost.attention = result_.parts.attention;
  timing.cost.lora = result_.parts.lora;
  timing.host_layers = result_.host_layers;
  timing.host_work = result_.host_work;
  // The rest: waking the device's thread, tokens in and out, the team's start and end.
  timing.cost.host = clock_ns() - submitted.at - timing.load_wait - timing.swap - timing.switching -
                     timing.cost.dense - timing.cost.attention - timing.cost.lora;
  timing_ = timing;
}

}  // namespace servelab
