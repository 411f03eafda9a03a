// Setting up, adapters, merges and swaps; the steps are in forward.cc.
#include "engine/backend/cuda/cuda_device.h"

#include <algorithm>
#include <bit>
#include <string>

#include "engine/core/check.h"
#include "kernels/cuda/lora.h"

namespace servelab::cuda {
namespace {

using kernels::DType;

constexpr std::size_t kDenseWorkspace = std::size_t{32} << 20;
constexpr int kVector = 8;  // elements of 16 bytes
constexpr int kWidestHead = 256;
constexpr const char* kBatchTokens = "engine.max_batch_tokens";
constexpr const char* kBatch = "engine.max_batch";

std::size_t product(int a, int b, std::size_t bytes) {
  return static_cast<std::size_t>(a) * static_cast<std::size_t>(b) * bytes;
}

std::size_t matrix_bytes(FusedShape shape, DType type) {
  return product(shape.n, shape.k, kernels::bytes_of(type));
}

std::shared_ptr<SmShares> shares_of(const DevicePlan& plan) {
  if (plan.partitions.empty()) return nullptr;
  return std::static_pointer_cast<SmShares>(plan.partitions.front());
}

int set_device(int device) {
  check(cudaSetDevice(device), "choosing the device");
  int multiprocessors = 0;
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
        "asking for the device's properties");
  return multiprocessors;
}

}  // namespace

CudaDevice::CudaDevice(const ModelConfig& model, const ModelWeights& weights,
                       const DevicePlan& plan, const RankSeat& seat)
    : LocalDevice(model, plan.limits),
      seat_(seat),
      part_(shard_model(model, seat.shard)),
      plan_(plan),
      shapes_(part_),
      stream_(set_device(plan.device), shares_of(plan)),
      kv_(part_, plan),
      merged_(static_cast<std::size_t>(model.layers)),
      use_merged_(static_cast<std::size_t>(model.layers)) {
  check_shapes();
  MemoryPlan memory;
  make_plan(&memory);
  std::size_t free = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for free device memory");
  memory.check(free);
  arena_ = std::make_unique<Arena>(memory.total());
  allocate();
  weights_ = std::make_unique<DeviceWeights>(part_, *shard_weights(model, weights, seat_.shard),
                                             vocab_range(model, seat_.shard), plan_.type,
                                             arena_.get(), &pinned_, stream_.get());
  dense_ = kernels::cuda::make_dense(dense_workspace_, kDenseWorkspace);
  if (dense_ == nullptr) throw SpecError("the CUDA engine: cuBLASLt could not be started");
}

CudaDevice::~CudaDevice() {
  cudaSetDevice(plan_.device);
  cudaStreamSynchronize(stream_.get());
  give_back_all();
}

void CudaDevice::check_shapes() const {
  SL_CHECK(plan_.type == DType::kBf16 || plan_.type == DType::kF16,
           "the CUDA engine computes in bf16 or f16");
  const auto refuse = [this](const std::string& needs) {
    throw SpecError("the CUDA engine needs " + needs + ", and " + part_.name + " has another");
  };
  if (part_.head_dim % kVector != 0 || part_.head_dim > kWidestHead) {
    refuse("a head_dim that is a multiple of 8, at most 256");
  }
  if (part_.heads % part_.kv_heads != 0) refuse("heads that are a multiple of kv_heads");
  if (part_.hidden % kVector != 0) refuse("a 'hidden' that is a multiple of 8");
  if (part_.ffn % kVector != 0) refuse("an 'ffn' that is a multiple of 8");
  if (plan_.adapters == 0) return;
  for (const LinearLayer target : plan_.targets) {
    const char* const layer = kLinearLayerNames[static_cast<std::size_t>(target)];
    const LinearShape shape = linear_shape(part_, layer);
    if (shape.in % kVector == 0 && shape.out % kVector == 0) continue;
    refuse("layers with adapters to be multiples of 8 wide (" + std::string(layer) + ")");
  }
}

// --- memory ---

std::size_t CudaDevice::layers_bytes() const {
  std::size_t bytes = 0;
  for (const Fused which : kAllFused) {
    bytes += Arena::rounded(matrix_bytes(shapes_.fused(which), plan_.type));
  }
  return bytes * static_cast<std::size_t>(part_.layers);
}

void CudaDevice::make_plan(MemoryPlan* plan) {
  DeviceWeights::plan(part_, vocab_range(model(), seat_.shard), plan_.type, plan);
  AdapterStore::plan(part_, plan_, plan);
  kv_.plan(plan);
  if (plan_.folded) {
    plan->add("folded layers", layers_bytes() * static_cast<std::size_t>(plan_.adapters),
              "engine.adapter_slots");
  }
  std::array<bool, kFusedMatrices> touched = {};
  for (const LinearLayer which : plan_.targets) {
    touched[static_cast<std::size_t>(matrix_of(which))] = plan_.merges;
  }
  for (const Fused which : kAllFused) {
    if (!touched[static_cast<std::size_t>(which)]) continue;
    plan->add("merged layers",
              Arena::rounded(matrix_bytes(shapes_.fused(which), plan_.type)) *
                  static_cast<std::size_t>(part_.layers),
              "lora.targets");
  }
  const int rows = StepInput::most_rows(plan_.limits);
  const int samples = StepInput::most_sequences(plan_.limits);
  const std::size_t element = kernels::bytes_of(plan_.type);
  const auto add = [plan](int count, int width, std::size_t bytes, const char* setting) {
    plan->add("activations", Arena::rounded(product(count, width, bytes)), setting);
  };
  add(rows, shapes_.hidden, sizeof(float), kBatchTokens);
  add(rows, shapes_.hidden, element, kBatchTokens);
  add(rows, std::max(shapes_.qkv, 2 * shapes_.ffn), element, kBatchTokens);
  add(rows, std::max(shapes_.q, shapes_.ffn), element, kBatchTokens);
  add(samples, shapes_.hidden, sizeof(float), kBatchTokens);
  add(samples, shapes_.hidden, element, kBatchTokens);
  add(samples, 1, sizeof(std::int32_t), kBatchTokens);
  plan->add("logits", Arena::rounded(product(samples, shapes_.vocab, sizeof(float))), kBatch);
  plan->add("step input", Arena::rounded(StepInput::bytes(part_, plan_.limits)), kBatch);
  plan->add("step input", Arena::rounded(sizeof(*host_arrived_)), "");
  if (seat_.collective != nullptr) {
    plan->add("step input", Arena::rounded(sizeof(*votes_)), "");
  }
  plan_workspaces(plan);
}

void CudaDevice::plan_workspaces(MemoryPlan* plan) {
  const int rows = StepInput::most_rows(plan_.limits);
  const int sequences = StepInput::most_sequences(plan_.limits);
  const int positions = StepInput::most_positions(part_, plan_.limits);
  for (int s = 1; s <= sequences; ++s) {
    for (int length = 1; length < 2 * positions; length *= 2) {
      const int splits = kernels::cuda::decode_splits(
          s, shapes_.kv_heads, std::min(length, positions), stream_.multiprocessors());
      workspace_bytes_.attention =
          std::max(workspace_bytes_.attention,
                   kernels::cuda::decode_workspace(s, shapes_.heads, shapes_.head_dim, splits));
    }
  }
  if (plan_.adapters > 0) {
    kernels::cuda::LoraBatch batch;
    batch.type = batch.y_type = plan_.type;
    batch.rows = batch.max_segment_rows = rows;
    batch.width = padded_rank(std::max(1, plan_.widest_rank));
    batch.segments = sequences;
    batch.distinct = std::min(sequences, plan_.adapters);
    for (const auto& row : kernels::kLoraKinds) {
      workspace_bytes_.lora =
          std::max(workspace_bytes_.lora,
                   kernels::cuda::lora_workspace(row.kind, batch, kernels::cuda::kMaxLoraTargets));
    }
  }
  for (const std::size_t bytes :
       {kDenseWorkspace, workspace_bytes_.lora, workspace_bytes_.attention}) {
    plan->add("workspaces", Arena::rounded(bytes), kBatchTokens);
  }
}

void CudaDevice::allocate() {
  const int rows = StepInput::most_rows(plan_.limits);
  const int samples = StepInput::most_sequences(plan_.limits);
  const std::size_t element = kernels::bytes_of(plan_.type);
  const auto floats = [this](int count, int width) {
    return reinterpret_cast<float*>(arena_->take(product(count, width, sizeof(float))));
  };
  const auto elements = [&](int count, int width) {
    return arena_->take(product(count, width, element));
  };
  act_.x = floats(rows, shapes_.hidden);
  act_.h = elements(rows, shapes_.hidden);
  act_.y = elements(rows, std::max(shapes_.qkv, 2 * shapes_.ffn));
  act_.a = elements(rows, std::max(shapes_.q, shapes_.ffn));
  act_.sampled_x = floats(samples, shapes_.hidden);
  act_.sampled_h = elements(samples, shapes_.hidden);
  act_.logits = floats(samples, shapes_.vocab);
  act_.tokens = arena_->take_array<std::int32_t>(static_cast<std::size_t>(samples));
  host_tokens_ = pinned_.take(static_cast<std::size_t>(samples) * sizeof(std::int32_t));
  const std::size_t input = StepInput::bytes(part_, plan_.limits);
  host_input_ = pinned_.take(input);
  input_ = std::make_unique<StepInput>(part_, plan_.limits, plan_.type, host_input_.get(),
                                       arena_->take(input));
  dense_workspace_ = arena_->take(kDenseWorkspace);
  lora_workspace_ = arena_->take(workspace_bytes_.lora);
  attention_workspace_ = arena_->take(workspace_bytes_.attention);
  host_arrived_ = arena_->take_array<std::int32_t>(1);
  check(cudaMemsetAsync(host_arrived_, 0, sizeof(*host_arrived_), stream_.get()),
        "clearing a counter");
  if (seat_.collective != nullptr) {
    votes_ = arena_->take_array<float>(1);
    host_votes_ = pinned_.take(sizeof(*votes_));
  }
  kv_.allocate(arena_.get(), &pinned_);
  adapters_ = std::make_shared<AdapterStore>(part_, plan_, arena_.get(), &pinned_);
  take_merge_memory();
  folded_memory_ = std::make_shared<FoldedMemory>();
  for (int i = 0; plan_.folded && i < plan_.adapters; ++i) {
    folded_memory_->free.push_back(arena_->take(layers_bytes()));
  }
}

void CudaDevice::take_merge_memory() {
  if (!plan_.merges) return;
  for (const LinearLayer target : plan_.targets) {
    const Fused which = matrix_of(target);
    for (Matrices& layer : merged_) {
      void*& matrix = layer[static_cast<std::size_t>(which)];
      if (matrix == nullptr) matrix = arena_->take(matrix_bytes(shapes_.fused(which), plan_.type));
    }
  }
}

// --- what can be asked ---

const char* CudaDevice::unsupported(const StepPlan& plan) const {
  if (plan.device_share != 1.0 && !stream_.has_shares()) {
    return "this device was not set up for shares of its SMs: set engine.device_share";
  }
  if (plan.take_over == TakeOver::kLayers) {
    return "the CUDA engine loads layers in their order: take_over must be never or loaded";
  }
  for (const Slice& slice : plan.slices) {
    if (slice.lora == LoraSite::kRemote) {
      return "the CUDA engine computes LoRA on the device or on its host, not on remote servers";
    }
    if (slice.lora == LoraSite::kHost && plan.exec == Exec::kMerged) {
      return "the CUDA engine computes LoRA on the host beside unmerged weights only";
    }
  }
  return nullptr;
}

void CudaDevice::enter_thread() { check(cudaSetDevice(plan_.device), "choosing the device"); }

// --- adapters and merging ---

std::unique_ptr<DeviceAdapter> CudaDevice::pack(const Load& load, const LoraWeights& weights) {
  if (load.folded) return fold_all(weights);
  return adapters_->load(weights, load.width);
}

void CudaDevice::prepare(const Load& load, std::shared_ptr<const LoraWeights> weights) {
  enter_thread();
  if (plan_.host_lora) host_lora()->hold(weights);
  adapters_->hold_on_host(std::move(weights), load.width);
}

// Made when it is first asked for: its threads and pinned memory are for those who use it.
HostLora* CudaDevice::host_lora() {
  enter_thread();
  const std::lock_guard lock(host_lora_mutex_);
  if (host_lora_ == nullptr) {
    host_lora_ =
        std::make_unique<HostLora>(part_, plan_, seat_.shard.rank,
                                   StepInput::most_rows(plan_.limits), host_arrived_, &pinned_);
  }
  return host_lora_.get();
}

std::unique_ptr<DeviceAdapter> CudaDevice::pack_on_host(const LoraWeights& weights) {
  return host_lora()->adapter(weights);
}

// One matrix of a layer with the adapter folded in; rows of layers that it leaves alone are the
// base's.
void CudaDevice::fold(const CudaAdapter& adapter, int layer, Fused which, void* out,
                      cudaStream_t stream) {
  const std::size_t element = kernels::bytes_of(plan_.type);
  const int k = shapes_.fused(which).k;
  const auto i = static_cast<std::size_t>(which);
  const auto* const base =
      static_cast<const std::byte*>(weights_->layers[static_cast<std::size_t>(layer)].base[i]);
  for (const LinearLayer target : members(which)) {
    const FusedPlace at = place_of(shapes_, target);
    const std::size_t offset = product(at.begin, k, element);
    std::byte* const to = static_cast<std::byte*>(out) + offset;
    if (const auto* const pair = adapter.find(layer, target)) {
      check(kernels::cuda::lora_merge(plan_.type, *pair, at.rows, k, base + offset, to, stream),
            "merging an adapter");
    } else {
      check(cudaMemcpyAsync(to, base + offset, product(at.rows, k, element),
                            cudaMemcpyDeviceToDevice, stream),
            "copying base weights");
    }
  }
}

void CudaDevice::merge(const DeviceAdapter& device_adapter) {
  const auto& adapter = static_cast<const CudaAdapter&>(device_adapter);
  unmerge();
  adapter.hold(stream_.get(), part_.layers);
  for (int l = 0; l < part_.layers; ++l) {
    for (const Fused which : kAllFused) {
      const auto touched = [&](LinearLayer target) { return adapter.find(l, target) != nullptr; };
      const auto all = members(which);
      if (std::none_of(all.begin(), all.end(), touched)) continue;
      const auto i = static_cast<std::size_t>(which);
      void* const out = merged_[static_cast<std::size_t>(l)][i];
      SL_CHECK(out != nullptr, "an adapter that is merged changes planned layers");
      fold(adapter, l, which, out, stream_.get());
      use_merged_[static_cast<std::size_t>(l)][i] = true;
    }
  }
  merged_set_ = merged_sets_.emplace(use_merged_, merged_sets_.size() + 1).first->second;
  stream_.synchronize();
}

void CudaDevice::unmerge() {
  for (auto& layer : use_merged_) layer.fill(false);
  merged_set_ = 0;
}

std::shared_ptr<std::byte> CudaDevice::take_folded_memory() {
  const std::lock_guard lock(folded_memory_->mutex);
  SL_CHECK(!folded_memory_->free.empty(), "there is a place for every copy of the layers");
  std::byte* const data = folded_memory_->free.back();
  folded_memory_->free.pop_back();
  return {data, [memory = folded_memory_](std::byte* given) {
            const std::lock_guard give(memory->mutex);
            memory->free.push_back(given);
          }};
}

// Folded on the device from the base weights: the copy of a whole model over the host's link, which
// a system without shared weights pays, is not part of this load.
std::unique_ptr<CudaAdapter> CudaDevice::fold_all(const LoraWeights& weights) {
  std::shared_ptr<std::byte> memory = take_folded_memory();
  std::unique_ptr<CudaAdapter> adapter = adapters_->load(weights, 0);
  std::vector<Matrices> folded;
  std::byte* next = memory.get();
  for (int l = 0; l < part_.layers; ++l) {
    Matrices& matrices = folded.emplace_back();
    for (const Fused which : kAllFused) {
      matrices[static_cast<std::size_t>(which)] = next;
      fold(*adapter, l, which, next, adapters_->stream());
      next += Arena::rounded(matrix_bytes(shapes_.fused(which), plan_.type));
    }
  }
  adapter->become_folded(std::move(folded), std::move(memory), adapters_->stream());
  return adapter;
}

// --- swapping ---

HostMemory CudaDevice::copy_out(const KvMove& move) {
  HostMemory host = pinned_.take(kv_.context_bytes(move.tokens));
  kv_.copy_out(move.blocks, move.tokens, host.get());
  return host;
}
void CudaDevice::copy_in(const KvMove& move, const std::byte* host) {
  kv_.copy_in(move.blocks, move.tokens, host);
}

}  // namespace servelab::cuda
