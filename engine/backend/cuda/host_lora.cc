#include "engine/backend/cuda/host_lora.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "engine/backend/cuda/stream_wait.h"
#include "engine/backend/device/thread_team.h"
#include "engine/core/check.h"

namespace servelab::cuda {
namespace {

using kernels::DType;

constexpr int kNoJob = -1;
constexpr int kLooksPerQuery = 4096;  // at a reply, before the stream is asked whether it failed
constexpr std::size_t kLine = 64;     // one for each word that two sides look at

std::size_t elements(int rows, int columns) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
}

// This rank's workers and their cores, behind those of the ranks before it.
HostLoraPlan plan_of(const DevicePlan& plan, int rank) {
  HostLoraPlan own = plan.lora;
  if (own.workers == 0) {
    own.workers = std::max(1, static_cast<int>(usable_cores().size()) / plan.ranks - 1);
  }
  own.cores.clear();
  for (int i = 0; i < own.workers && !plan.lora.cores.empty(); ++i) {
    const auto at = static_cast<std::size_t>(rank * own.workers + i);
    own.cores.push_back(plan.lora.cores[at % plan.lora.cores.size()]);
  }
  return own;
}

// The widest input or output of the matrices that adapters change.
int widest(const Shapes& shapes, const DevicePlan& plan, int FusedShape::*side) {
  int most = 0;
  for (const LinearLayer target : plan.targets) {
    most = std::max(most, shapes.fused(matrix_of(target)).*side);
  }
  return most;
}

}  // namespace

HostLora::HostLora(const ModelConfig& model, const DevicePlan& plan, int rank, int most_rows,
                   std::int32_t* arrived, PinnedPool* pinned)
    : shapes_(model),
      type_(plan.type),
      panels_type_(plan.type == DType::kBf16 ? DType::kBf16 : DType::kF32),
      targets_(plan.targets),
      arrived_(arrived) {
  require_stream_wait();
  const std::size_t element = kernels::bytes_of(type_);
  host_lora::TeamSettings settings;
  settings.plan = plan_of(plan, rank);
  settings.wakes = false;
  settings.isa = kernels::best_isa();
  settings.most_jobs = model.layers * static_cast<int>(kFusedMatrices);
  settings.most_rows = most_rows;
  settings.x_row_bytes = elements(1, widest(shapes_, plan, &FusedShape::k)) * element;
  settings.out_row_bytes = elements(1, widest(shapes_, plan, &FusedShape::n)) * element;
  settings.memory = [pinned](std::size_t bytes) { return pinned->take(bytes); };
  x_bytes_ = static_cast<std::size_t>(most_rows) * settings.x_row_bytes;
  int own_core = -1;
  if (settings.plan.by != HostLoraBy::kProcesses) {  // one of the threads is the leader
    settings.plan.by = HostLoraBy::kThreads;
    settings.caller_helps = true;
    --settings.plan.workers;
    std::vector<int>& cores = settings.plan.cores;
    if (!cores.empty()) own_core = cores.front();
    if (cores.size() > 1) cores.erase(cores.begin());
  }
  words_ = pinned->take(kLine);
  std::memset(words_.get(), 0, kLine);
  reply_ = reinterpret_cast<std::uint32_t*>(words_.get());
  job_of_.resize(static_cast<std::size_t>(model.layers) * kFusedMatrices, kNoJob);
  team_ = std::make_unique<host_lora::Team>(settings);
  if (settings.plan.by == HostLoraBy::kProcesses) {
    const std::span<std::byte> memory = team_->exchange();
    check(cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable),
          "making memory that processes share the device's too");
    registered_ = true;
  }
  leader_ = std::thread([this, own_core] {
    pin_to_core(own_core);
    lead();
  });
}

HostLora::~HostLora() {
  abandon();
  {
    const std::lock_guard lock(mutex_of_step_);
    stop_ = true;
  }
  changed_.notify_all();
  leader_.join();
  if (registered_) static_cast<void>(cudaHostUnregister(team_->exchange().data()));
}

std::shared_ptr<const PackedAdapter> HostLora::pack(const LoraWeights& weights) const {
  SL_CHECK(weights.layers() == shapes_.layers, "an adapter has its model's layers");
  for (const LinearLayer target : weights.targets()) {
    if (std::find(targets_.begin(), targets_.end(), target) != targets_.end()) continue;
    throw SpecError("adapter '" + weights.name() + "' changes layer '" +
                    kLinearLayerNames[static_cast<std::size_t>(target)] +
                    "', which lora.targets does not name");
  }
  return std::make_shared<const PackedAdapter>(weights, panels_type_, 0, team_->adapters());
}

void HostLora::hold(std::shared_ptr<const LoraWeights> weights) {
  Held held{weights, pack(*weights)};
  const std::lock_guard lock(mutex_);
  held_.insert_or_assign(weights.get(), std::move(held));
}

std::unique_ptr<HostAdapter> HostLora::adapter(const LoraWeights& weights) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = held_.find(&weights);
    if (found != held_.end()) return std::make_unique<HostAdapter>(found->second.packed);
  }
  return std::make_unique<HostAdapter>(pack(weights));
}

// --- a step ---

HostLora::Step::Step(HostLora* host, const HostRows& rows, HostCopy copy, cudaStream_t stream)
    : host_(host), stream_(stream) {
  host_->begin(rows, copy, stream);
}

HostLora::Step::~Step() {
  if (done_) return;
  host_->abandon();
  static_cast<void>(cudaStreamSynchronize(stream_));  // its errors are those that led here
}

void HostLora::Step::finish() {
  done_ = true;
  host_->finish();
}

int& HostLora::job_of(int layer, Fused which) {
  return job_of_[static_cast<std::size_t>(layer) * kFusedMatrices +
                 static_cast<std::size_t>(which)];
}

std::uint32_t HostLora::number_of(int job) const {
  return first_ + static_cast<std::uint32_t>(job);
}

bool HostLora::touched(int layer, Fused which) const {
  const auto targets = members(which);
  return std::any_of(rows_->groups.begin(), rows_->groups.end(), [&](const HostRows::Group& group) {
    return std::any_of(targets.begin(), targets.end(), [&](LinearLayer target) {
      return group.adapter->packed().find(layer, target) != nullptr;
    });
  });
}

void HostLora::begin(const HostRows& rows, HostCopy copy, cudaStream_t stream) {
  rows_ = &rows;
  stream_ = stream;
  copy_ = copy;
  if (copy == HostCopy::kPageable && pageable_ == nullptr) {
    pageable_ = std::make_unique<std::byte[]>(x_bytes_);
  }
  failure_ = nullptr;  // nobody is busy
  jobs_.clear();
  for (int layer = 0; layer < shapes_.layers; ++layer) {
    for (const Fused which : kAllFused) {
      job_of(layer, which) = kNoJob;
      if (!touched(layer, which)) continue;
      job_of(layer, which) = static_cast<int>(jobs_.size());
      const auto [n, k] = shapes_.fused(which);
      host_lora::Job job{layer, k, n, 0, {}};
      for (const LinearLayer target : members(which)) {
        const FusedPlace at = place_of(shapes_, target);
        job.target[static_cast<std::size_t>(job.targets++)] = {static_cast<std::int32_t>(target),
                                                               at.begin, at.rows};
      }
      jobs_.push_back(job);
    }
  }
  if (jobs_.empty()) return;
  std::vector<host_lora::Group> groups;
  for (const HostRows::Group& group : rows.groups) {
    groups.push_back({&group.adapter->packed(), group.begin, group.count});
  }
  start(team_->begin({type_, type_, 0, 0, true}, groups, jobs_), static_cast<int>(jobs_.size()));
}

void HostLora::send(int layer, Fused which, const void* x) {
  if (job_of(layer, which) == kNoJob) return;
  const std::uint32_t number = number_of(job_of(layer, which));
  const int k = shapes_.fused(which).k;
  const kernels::cuda::RowStretches& rows = rows_->rows;
  if (copy_ == HostCopy::kFused) {
    check(kernels::cuda::send_rows(x, k, rows, k, team_->x(), team_->signal_word(), number,
                                   arrived_, stream_),
          "sending rows to the host");
    return;
  }
  const std::size_t row_bytes = elements(1, k) * kernels::bytes_of(type_);
  std::byte* const begin = copy_ == HostCopy::kPageable ? pageable_.get() : team_->x();
  std::byte* to = begin;
  for (int i = 0; i < 2; ++i) {
    const std::size_t bytes = static_cast<std::size_t>(rows.count[i]) * row_bytes;
    if (bytes == 0) continue;
    const auto* const from =
        static_cast<const std::byte*>(x) + static_cast<std::size_t>(rows.begin[i]) * row_bytes;
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_),
          "copying rows to the host");
    to += bytes;
  }
  check(cudaStreamSynchronize(stream_), "waiting for rows to come to the host");
  if (begin != team_->x()) std::copy(begin, to, team_->x());
  std::atomic_ref(*team_->signal_word()).store(number, std::memory_order_release);
}

void HostLora::add(int layer, Fused which, DType y_type, void* y) {
  if (job_of(layer, which) == kNoJob) return;
  hold_until(stream_, reply_, number_of(job_of(layer, which)));
  const int n = shapes_.fused(which).n;
  check(kernels::cuda::add_rows(type_, team_->out(), rows_->rows, n, y_type, y, n, stream_),
        "adding the host's rows");
}

void HostLora::settle(int layer) {
  const auto after = std::find_if(jobs_.begin(), jobs_.end(), [layer](const host_lora::Job& job) {
    return job.layer >= layer;
  });
  if (after == jobs_.begin()) return;
  const std::uint32_t number = number_of(static_cast<int>(after - jobs_.begin()) - 1);
  const std::atomic_ref reply(*reply_);
  for (int looks = 1; static_cast<std::int32_t>(reply.load(std::memory_order_acquire) - number) < 0;
       ++looks) {
    std::this_thread::yield();
    if (looks % kLooksPerQuery != 0) continue;
    const cudaError_t state = cudaStreamQuery(stream_);
    if (state != cudaErrorNotReady) check(state, "following a step to the host");
  }
}

void HostLora::leave() {
  abandon();
  jobs_.clear();
  std::fill(job_of_.begin(), job_of_.end(), kNoJob);
}

// --- the leader ---

void HostLora::start(std::uint32_t first, int jobs) {
  {
    const std::lock_guard lock(mutex_of_step_);
    SL_CHECK(!busy_, "the host's LoRA follows one step at a time");
    first_ = first;
    count_ = jobs;
    busy_ = true;
  }
  changed_.notify_all();
}

void HostLora::wait_until_idle() {
  std::unique_lock lock(mutex_of_step_);
  changed_.wait(lock, [this] { return !busy_; });
}

// After the signals of all jobs: throws what failed on the host.
void HostLora::finish() {
  wait_until_idle();
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

// Ends a step whose signals may never come: nobody works on it any more, and streams that wait for
// any of its replies go on.
void HostLora::abandon() {
  team_->abandon();
  wait_until_idle();
  std::atomic_ref(*reply_).store(number_of(count_ - 1), std::memory_order_release);
}

void HostLora::lead() {
  std::unique_lock lock(mutex_of_step_);
  for (;;) {
    changed_.wait(lock, [this] { return busy_ || stop_; });
    if (!busy_) return;
    lock.unlock();
    std::exception_ptr failure;
    // A job that fails is replied to as well, so that no stream is left waiting.
    const auto keep = [&failure](auto&& work) {
      try {
        return work();
      } catch (const std::bad_alloc&) {
        failure = std::make_exception_ptr(
            SpecError("out of memory: LoRA on the host has none for its rows"));
      } catch (...) {
        failure = std::current_exception();
      }
      return true;
    };
    for (int job = 0; job < count_; ++job) {
      if (!keep([&] { return team_->wait(job); })) break;
      std::atomic_ref(*reply_).store(number_of(job), std::memory_order_release);
    }
    keep([&] {
      team_->finish();
      return true;
    });
    lock.lock();
    failure_ = failure;
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace servelab::cuda
