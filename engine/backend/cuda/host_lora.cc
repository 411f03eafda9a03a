#include "engine/backend/cuda/host_lora.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "engine/backend/cuda/stream_wait.h"
#include "engine/core/check.h"

namespace servelab::cuda {
namespace {

using kernels::DType;

constexpr std::int64_t kNoJob = -1;
constexpr int kLooksPerQuery = 4096;  // at a reply, before the stream is asked whether it failed
constexpr std::size_t kLine = 64;     // one for each word that two sides look at

std::size_t elements(int rows, int columns) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
}

// A share of the cores for each rank, less the one that the rank's own thread launches from.
int threads_of(const DevicePlan& plan) {
  if (plan.host_threads > 0) return plan.host_threads;
  return std::max(1, static_cast<int>(usable_cores().size()) / plan.ranks - 1);
}

// This rank's cores, behind those of the ranks before it.
std::vector<int> cores_of(const DevicePlan& plan, int rank) {
  std::vector<int> cores;
  const auto threads = static_cast<std::size_t>(threads_of(plan));
  for (std::size_t i = 0; i < threads && !plan.host_cores.empty(); ++i) {
    const std::size_t at = static_cast<std::size_t>(rank) * threads + i;
    cores.push_back(plan.host_cores[at % plan.host_cores.size()]);
  }
  return cores;
}

// The widest input or output of the matrices that adapters change.
int widest(const Shapes& shapes, const DevicePlan& plan, int FusedShape::*side) {
  int most = 0;
  for (const LinearLayer target : plan.targets) {
    most = std::max(most, shapes.fused(matrix_of(target)).*side);
  }
  return most;
}

// Of the calling thread, for one use at a time.
template <int use>
float* scratch(std::size_t count) {
  thread_local std::vector<float> memory;
  if (memory.size() < count) memory.resize(count);
  return memory.data();
}

}  // namespace

HostLora::HostLora(const ModelConfig& model, const DevicePlan& plan, int rank, int most_rows,
                   std::int32_t* arrived, PinnedPool* pinned)
    : shapes_(model),
      type_(plan.type),
      panels_type_(plan.type == DType::kBf16 ? DType::kBf16 : DType::kF32),
      targets_(plan.targets),
      ops_(kernels::ops(kernels::best_isa())),
      arrived_(arrived) {
  require_stream_wait();
  const std::size_t element = kernels::bytes_of(type_);
  x_bytes_ = elements(most_rows, widest(shapes_, plan, &FusedShape::k)) * element;
  x_ = pinned->take(x_bytes_);
  delta_ = pinned->take(elements(most_rows, widest(shapes_, plan, &FusedShape::n)) * element);
  words_ = pinned->take(2 * kLine);
  std::memset(words_.get(), 0, 2 * kLine);
  signal_ = reinterpret_cast<std::uint32_t*>(words_.get());
  reply_ = reinterpret_cast<std::uint32_t*>(words_.get() + kLine);
  numbers_.resize(static_cast<std::size_t>(model.layers) * kFusedMatrices, kNoJob);
  workers_ = std::make_unique<HostWorkers>(threads_of(plan), cores_of(plan, rank), signal_, reply_);
}

std::shared_ptr<const PackedAdapter> HostLora::pack(const LoraWeights& weights) const {
  SL_CHECK(weights.layers() == shapes_.layers, "an adapter has its model's layers");
  for (const LinearLayer target : weights.targets()) {
    if (std::find(targets_.begin(), targets_.end(), target) != targets_.end()) continue;
    throw SpecError("adapter '" + weights.name() + "' changes layer '" +
                    kLinearLayerNames[static_cast<std::size_t>(target)] +
                    "', which lora.targets does not name");
  }
  return std::make_shared<const PackedAdapter>(weights, panels_type_, storage_);
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
  host_->workers_->abandon();
  static_cast<void>(cudaStreamSynchronize(stream_));  // its errors are those that led here
}

void HostLora::Step::finish() {
  done_ = true;
  if (!host_->jobs_.empty()) host_->workers_->finish();
}

std::int64_t& HostLora::number_of(int layer, Fused which) {
  return numbers_[static_cast<std::size_t>(layer) * kFusedMatrices +
                  static_cast<std::size_t>(which)];
}

bool HostLora::touched(int layer, Fused which) const {
  const auto targets = members(which);
  return std::any_of(rows_->groups.begin(), rows_->groups.end(), [&](const HostRows::Group& group) {
    return std::any_of(targets.begin(), targets.end(), [&](LinearLayer target) {
      return group.adapter->find(layer, target) != nullptr;
    });
  });
}

void HostLora::begin(const HostRows& rows, HostCopy copy, cudaStream_t stream) {
  rows_ = &rows;
  stream_ = stream;
  copy_ = copy;
  rows_of_x_ = x_.get();
  if (copy == HostCopy::kPageable) {
    if (pageable_ == nullptr) pageable_ = std::make_unique<std::byte[]>(x_bytes_);
    rows_of_x_ = pageable_.get();
  }
  pieces_.clear();
  for (const HostRows::Group& group : rows.groups) {
    const int cores = (group.count + kRowsPerCore - 1) / kRowsPerCore;
    for (int i = 0; i < cores; ++i) {
      const int begin = group.count * i / cores;
      const int end = group.count * (i + 1) / cores;
      pieces_.push_back({group.adapter, group.begin + begin, end - begin});
    }
  }
  jobs_.clear();
  for (int layer = 0; layer < shapes_.layers; ++layer) {
    for (const Fused which : kAllFused) {
      number_of(layer, which) = kNoJob;
      if (touched(layer, which)) jobs_.push_back({layer, which});
    }
  }
  if (jobs_.empty()) return;
  std::uint32_t number = workers_->begin(
      static_cast<int>(jobs_.size()), static_cast<int>(pieces_.size()), [this](int job, int piece) {
        const Piece& part = pieces_[static_cast<std::size_t>(piece)];
        try {
          compute(jobs_[static_cast<std::size_t>(job)], part);
        } catch (const std::bad_alloc&) {
          throw SpecError("out of memory: LoRA on the host has none for " +
                          std::to_string(part.count) + " rows");
        }
      });
  for (const Job& job : jobs_) number_of(job.layer, job.which) = number++;
}

void HostLora::send(int layer, Fused which, const void* x) {
  if (number_of(layer, which) == kNoJob) return;
  const auto number = static_cast<std::uint32_t>(number_of(layer, which));
  const int k = shapes_.fused(which).k;
  const kernels::cuda::RowStretches& rows = rows_->rows;
  if (copy_ == HostCopy::kFused) {
    check(kernels::cuda::send_rows(x, k, rows, k, x_.get(), signal_, number, arrived_, stream_),
          "sending rows to the host");
    return;
  }
  const std::size_t row_bytes = elements(1, k) * kernels::bytes_of(type_);
  std::byte* to = rows_of_x_;
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
  std::atomic_ref(*signal_).store(number, std::memory_order_release);
}

void HostLora::add(int layer, Fused which, DType y_type, void* y) {
  if (number_of(layer, which) == kNoJob) return;
  hold_until(stream_, reply_, static_cast<std::uint32_t>(number_of(layer, which)));
  const int n = shapes_.fused(which).n;
  check(kernels::cuda::add_rows(type_, delta_.get(), rows_->rows, n, y_type, y, n, stream_),
        "adding the host's rows");
}

void HostLora::settle(int layer) {
  const auto after = std::find_if(jobs_.begin(), jobs_.end(),
                                  [layer](const Job& job) { return job.layer >= layer; });
  if (after == jobs_.begin()) return;
  const Job& last = *(after - 1);
  const auto number = static_cast<std::uint32_t>(number_of(last.layer, last.which));
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
  workers_->abandon();
  jobs_.clear();
  std::fill(numbers_.begin(), numbers_.end(), kNoJob);
  workers_->finish();
}

// --- on the host's threads ---

// The piece's rows of x, as the CPU's kernels take them.
const void* HostLora::input(const Piece& piece, int k) const {
  const std::byte* const x = rows_of_x_ + elements(piece.begin, k) * kernels::bytes_of(type_);
  if (type_ == panels_type_) return x;
  const std::size_t count = elements(piece.count, k);
  float* const wide = scratch<0>(count);
  ops_.widen(type_, x, wide, static_cast<std::int64_t>(count));
  return wide;
}

void HostLora::compute(const Job& job, const Piece& piece) const {
  const auto [n, k] = shapes_.fused(job.which);
  const void* const x = input(piece, k);
  const std::size_t element = kernels::bytes_of(type_);
  std::byte* const rows = delta_.get() + elements(piece.begin, n) * element;
  for (const LinearLayer target : members(job.which)) {
    const FusedPlace at = place_of(shapes_, target);
    std::byte* const out = rows + static_cast<std::size_t>(at.begin) * element;
    if (const kernels::LoraPair* const pair = piece.adapter->find(job.layer, target)) {
      compute_target(*pair, x, piece.count, out, n);
      continue;
    }
    for (int row = 0; row < piece.count; ++row) {
      std::memset(out + elements(row, n) * element, 0, elements(1, at.rows) * element);
    }
  }
}

// out[rows, pair.b.n] = scale * x A^T B^T in f32, rounded once; row stride ldo.
void HostLora::compute_target(const kernels::LoraPair& pair, const void* x, int rows,
                              std::byte* out, int ldo) const {
  const int columns = pair.b.n;
  const int ldt = kernels::shrink_stride(pair.rank);
  const kernels::LoraRows all{0, rows, &pair};
  float* const t = scratch<1>(elements(rows, ldt));
  float* const y = scratch<2>(elements(rows, columns));
  std::fill_n(y, elements(rows, columns), 0.0f);
  ops_.lora_shrink(kernels::LoraKind::kSgmv, all, pair.rank, x, pair.a.k, t, ldt);
  ops_.lora_expand(kernels::LoraKind::kSgmv, all, pair.rank, t, ldt, y, columns, 0, columns);
  for (int row = 0; row < rows; ++row) {
    ops_.narrow(y + elements(row, columns), type_,
                out + elements(row, ldo) * kernels::bytes_of(type_), columns);
  }
}

}  // namespace servelab::cuda
