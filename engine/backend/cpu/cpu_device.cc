#include "engine/backend/cpu/cpu_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/backend/cpu/cpu_device_impl.h"
#include "engine/core/check.h"

namespace servelab {
namespace {

using kernels::DType;

constexpr std::size_t kAlignment = 64;

std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

// A vector as floats.
std::vector<float> floats(const kernels::Ops& ops, const Tensor& tensor) {
  std::vector<float> out(static_cast<std::size_t>(tensor.rows) *
                         static_cast<std::size_t>(tensor.columns));
  ops.widen(tensor.type, tensor.data, out.data(), static_cast<std::int64_t>(out.size()));
  return out;
}

void check_shape(const ModelConfig& model) {
  if (model.head_dim % 16 != 0 || model.head_dim > 256) {
    throw SpecError("the CPU engine needs a head_dim that is a multiple of 16, at most 256; " +
                    model.name + " has " + std::to_string(model.head_dim));
  }
}

}  // namespace

// --- setting up ---

CpuDevice::Impl::Impl(const ModelConfig& model, const ModelWeights& weights,
                      const CpuDeviceOptions& options)
    : model_(model),
      options_(options),
      ops_(kernels::ops(options.isa)),
      team_(options.threads, options.cores),
      embedding_(weights.tensor(ModelTensor::kEmbedding)),
      rope_(model) {
  check_shape(model);
  SL_CHECK(options.type == DType::kF32 || options.type == DType::kBf16,
           "the CPU engine computes in f32 or bf16");
  layers_.resize(static_cast<std::size_t>(model.layers));
  check_memory();
  allocate();
  adapter_storage_->reserve(options_.adapter_bytes);
  pack_layers(weights);
  reserve(options_.merge_targets);
}

void CpuDevice::Impl::check_memory() const {
  std::size_t packed = kernels::packed_bytes(options_.type, model_.vocab, model_.hidden);
  std::size_t merged = 0;
  for (const Fused which : kAllFused) {
    const FusedShape shape = shapes_.fused(which);
    const std::size_t bytes =
        kernels::packed_bytes(options_.type, shape.n, shape.k) * layers_.size();
    packed += bytes;
    const bool merges = std::ranges::any_of(
        options_.merge_targets, [&](LinearLayer target) { return matrix_of(target) == which; });
    if (merges) merged += bytes;
  }
  const std::size_t kv = static_cast<std::size_t>(options_.kv_blocks * options_.block_tokens) *
                         static_cast<std::size_t>(model_.kv_heads * model_.head_dim * 2) *
                         kernels::bytes_of(options_.type) * layers_.size();
  const std::size_t available = available_memory();
  if (packed + merged + kv + options_.adapter_bytes <= available) return;
  const auto mib = [](std::size_t bytes) { return std::to_string(bytes / kMiB) + " MiB "; };
  const std::string copy = merged == 0 ? "" : mib(merged) + "of a copy to merge adapters into, ";
  throw SpecError("out of memory: " + mib(packed) + "of packed weights, " + copy + mib(kv) +
                  "of KV cache and " + mib(options_.adapter_bytes) +
                  "for adapters, but this machine has " + std::to_string(available / kMiB) +
                  " MiB available; lower memory_bytes in the hardware profile or choose a smaller "
                  "model");
}

void CpuDevice::Impl::allocate() {
  const auto rows = static_cast<std::size_t>(options_.max_batch_tokens);
  const auto hidden = static_cast<std::size_t>(model_.hidden);
  for (const Fused which : kAllFused) {
    widest_input_ = std::max(widest_input_, shapes_.fused(which).k);
    widest_output_ = std::max(widest_output_, shapes_.fused(which).n);
  }
  const auto kv_row = static_cast<std::size_t>(model_.kv_heads * model_.head_dim) *
                      kernels::bytes_of(options_.type);
  const std::size_t kv_layer =
      kv_row * static_cast<std::size_t>(options_.kv_blocks * options_.block_tokens);
  kv_ = Buffer(2 * kv_layer * layers_.size(), "the KV cache");
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    kernels::KvCache& cache = layers_[i].cache;
    cache.type = options_.type;
    cache.keys = kv_.data() + 2 * i * kv_layer;
    cache.values = kv_.data() + (2 * i + 1) * kv_layer;
    cache.kv_heads = model_.kv_heads;
    cache.head_dim = model_.head_dim;
    cache.block_tokens = options_.block_tokens;
  }
  x_ = Buffer(rows * hidden * sizeof(float), "activations");
  const std::size_t h_row =
      static_cast<std::size_t>(widest_input_) * kernels::bytes_of(options_.type);
  if (options_.host_lora.by == HostLoraBy::kInline) {
    own_h_ = Buffer(rows * h_row, "activations");
    h_ = own_h_.data();
  } else {
    start_workers(h_row);
  }
  y_ = Buffer(rows * static_cast<std::size_t>(widest_output_) * sizeof(float), "activations");
  logits_ = Buffer(static_cast<std::size_t>(options_.max_batch) *
                       static_cast<std::size_t>(model_.vocab) * sizeof(float),
                   "logits");
  const int group = model_.heads / model_.kv_heads;
  scratch_attention_ = round_up(
      layers_.empty() ? 0 : kernels::attention_scratch(layers_[0].cache, group), kAlignment);
  const std::size_t sampling = static_cast<std::size_t>(model_.vocab) * 8;
  for (int i = 0; i < options_.threads; ++i) {
    scratch_.emplace_back(std::max(scratch_attention_, sampling), "scratch memory");
  }
  next_task_ = std::make_unique<std::atomic<int>[]>(layers_.size());
  lora_rows_.resize(static_cast<std::size_t>(options_.threads));
}

void CpuDevice::Impl::start_workers(std::size_t h_row) {
  host_lora::TeamSettings settings;
  settings.plan = options_.host_lora;
  settings.isa = options_.isa;
  settings.most_jobs = model_.layers * static_cast<int>(kFusedMatrices);
  settings.most_rows = options_.max_batch_tokens;
  settings.x_row_bytes = h_row;
  settings.out_row_bytes = static_cast<std::size_t>(widest_output_) * sizeof(float);
  workers_ = std::make_unique<host_lora::Team>(settings);
  h_ = workers_->x();
  job_of_.assign(static_cast<std::size_t>(settings.most_jobs), -1);
}

// Stacks row-major matrices of one width, and packs them as one: in F32 where they have not one
// type.
void CpuDevice::Impl::pack_fused(const std::vector<Tensor>& sources, kernels::Linear* linear) {
  const Tensor& first = sources.front();
  const void* data = first.data;
  DType type = first.type;
  std::vector<std::byte> stacked;
  if (sources.size() > 1) {
    for (const Tensor& source : sources) {
      if (source.type != first.type) type = DType::kF32;
    }
    for (const Tensor& source : sources) {
      SL_CHECK(source.columns == first.columns, "fused matrices have one input");
      const std::size_t count =
          static_cast<std::size_t>(source.rows) * static_cast<std::size_t>(source.columns);
      const std::size_t at = stacked.size();
      stacked.resize(at + count * kernels::bytes_of(type));
      if (type == source.type) {
        std::memcpy(&stacked[at], source.data, stacked.size() - at);
      } else {
        ops_.widen(source.type, source.data, reinterpret_cast<float*>(&stacked[at]),
                   static_cast<std::int64_t>(count));
      }
    }
    data = stacked.data();
  }
  team_.run([&](int member) { linear->pack(member, type, data, first.columns); });
}

void CpuDevice::Impl::pack_layers(const ModelWeights& weights) {
  const auto make = [this](int n, int k) {
    auto linear = kernels::make_linear(options_.gemm, ops_, options_.type, n, k, options_.threads);
    if (linear == nullptr) {
      throw SpecError(std::string("this servelab was built without the '") +
                      kernels::name(options_.gemm) + "' GEMM library, or it lacks the type");
    }
    return linear;
  };
  for (int i = 0; i < model_.layers; ++i) {
    LayerWeights& layer = layers_[static_cast<std::size_t>(i)];
    for (const Fused which : kAllFused) {
      const auto [n, k] = shapes_.fused(which);
      auto& linear = layer.base[static_cast<std::size_t>(which)];
      linear = make(n, k);
      std::vector<Tensor> parts;
      for (const LinearLayer part : members(which)) parts.push_back(weights.linear(i, part));
      pack_fused(parts, linear.get());
    }
    layer.attention_norm = floats(ops_, weights.vector(i, LayerVector::kAttentionNorm));
    layer.ffn_norm = floats(ops_, weights.vector(i, LayerVector::kFfnNorm));
    if (!model_.qkv_bias) continue;
    for (const LayerVector bias : {LayerVector::kQBias, LayerVector::kKBias, LayerVector::kVBias}) {
      const std::vector<float> values = floats(ops_, weights.vector(i, bias));
      layer.qkv_bias.insert(layer.qkv_bias.end(), values.begin(), values.end());
    }
  }
  final_norm_ = floats(ops_, weights.tensor(ModelTensor::kFinalNorm));
  lm_head_ = make(model_.vocab, model_.hidden);
  pack_fused({weights.tensor(ModelTensor::kLmHead)}, lm_head_.get());
}

// --- merging ---

std::unique_ptr<kernels::Linear> CpuDevice::Impl::like(const kernels::Linear& other) const {
  return kernels::make_linear(options_.gemm, ops_, options_.type, other.n(), other.k(),
                              options_.threads);
}

// Packs one part of a layer's matrix with the adapter folded in into `out`; `rows` is scratch.
void CpuDevice::Impl::fold(const CpuAdapter& adapter, int layer, Fused which, int part,
                           std::vector<float>* rows, kernels::Linear* out) const {
  const kernels::Linear& base =
      *layers_[static_cast<std::size_t>(layer)].base[static_cast<std::size_t>(which)];
  const int begin = base.column_begin(part);
  const int end = base.column_end(part);
  if (begin == end) return;
  const std::int64_t k = base.k();
  rows->resize(static_cast<std::size_t>(end - begin) * static_cast<std::size_t>(k));
  base.unpack(part, rows->data(), k);
  for (const LinearLayer target : members(which)) {
    const FusedPlace at = place_of(shapes_, target);
    const kernels::LoraPair* pair = adapter.find(layer, target);
    const int from = std::max(begin, at.begin);
    const int to = std::min(end, at.begin + at.rows);
    if (pair == nullptr || from >= to) continue;
    float* const first = rows->data() + (from - begin) * k;
    ops_.lora_merge(*pair, first, first, from - at.begin, to - at.begin);
  }
  out->pack(part, DType::kF32, rows->data() - begin * k, k);
}

// Also touches the memory, so that a merge does not pay for its first page faults.
void CpuDevice::Impl::reserve(Fused which, LayerWeights* layer) {
  const auto i = static_cast<std::size_t>(which);
  if (layer->merged[i] != nullptr) return;
  layer->merged[i] = like(*layer->base[i]);
  const CpuAdapter nothing;
  const auto index = static_cast<int>(layer - layers_.data());
  team_.run([&](int member) {
    std::vector<float> rows;
    fold(nothing, index, which, member, &rows, layer->merged[i].get());
  });
}

void CpuDevice::Impl::reserve(std::span<const LinearLayer> targets) {
  for (LayerWeights& layer : layers_) {
    for (const LinearLayer target : targets) reserve(matrix_of(target), &layer);
  }
}

void CpuDevice::Impl::merge(const CpuAdapter& adapter) {
  unmerge();
  for (int l = 0; l < model_.layers; ++l) {
    LayerWeights& layer = layers_[static_cast<std::size_t>(l)];
    for (int t = 0; t < kLinearLayers; ++t) {
      const auto target = static_cast<LinearLayer>(t);
      if (adapter.find(l, target) == nullptr) continue;
      const Fused which = matrix_of(target);
      reserve(which, &layer);
      layer.use_merged[static_cast<std::size_t>(which)] = true;
    }
  }
  team_.run([&](int member) {
    std::vector<float> rows;
    for (int l = 0; l < model_.layers; ++l) {
      LayerWeights& layer = layers_[static_cast<std::size_t>(l)];
      for (const Fused which : kAllFused) {
        const auto i = static_cast<std::size_t>(which);
        if (layer.use_merged[i]) fold(adapter, l, which, member, &rows, layer.merged[i].get());
      }
    }
  });
}

std::unique_ptr<FoldedLayers> CpuDevice::Impl::fold_all(const CpuAdapter& adapter) const {
  auto folded = std::make_unique<FoldedLayers>();
  std::vector<float> rows;
  for (int l = 0; l < model_.layers; ++l) {
    FusedLinears& linears = folded->layers.emplace_back();
    for (const Fused which : kAllFused) {
      const auto i = static_cast<std::size_t>(which);
      linears[i] = like(*layers_[static_cast<std::size_t>(l)].base[i]);
      for (int part = 0; part < options_.threads; ++part) {
        fold(adapter, l, which, part, &rows, linears[i].get());
      }
    }
  }
  return folded;
}

void CpuDevice::Impl::unmerge() {
  for (LayerWeights& layer : layers_) {
    layer.use_merged.fill(false);
  }
}

// --- swapping ---

Bytes CpuDevice::Impl::kv_bytes_per_token() const {
  return 2LL * model_.layers * model_.kv_heads * model_.head_dim *
         static_cast<Bytes>(kernels::bytes_of(options_.type));
}

// To `host` or from it, as the move says.
void CpuDevice::Impl::copy_context(const KvMove& move, std::byte* host) const {
  const auto row = static_cast<std::size_t>(model_.head_dim) * kernels::bytes_of(options_.type);
  const auto heads = static_cast<std::size_t>(model_.kv_heads);
  const auto block = static_cast<std::size_t>(options_.block_tokens);
  for (const LayerWeights& layer : layers_) {
    for (void* const side : {layer.cache.keys, layer.cache.values}) {
      auto* const base = static_cast<std::byte*>(side);
      for (std::size_t done = 0; done < static_cast<std::size_t>(move.tokens); done += block) {
        const std::size_t count = std::min(block, static_cast<std::size_t>(move.tokens) - done);
        for (std::size_t head = 0; head < heads; ++head) {
          const auto index = static_cast<std::size_t>(move.blocks[done / block]) * heads + head;
          std::byte* const device = base + index * block * row;
          if (move.to_host) {
            std::memcpy(host, device, count * row);
          } else {
            std::memcpy(device, host, count * row);
          }
          host += count * row;
        }
      }
    }
  }
}

// --- the public face ---

CpuDevice::CpuDevice(const ModelConfig& model, const ModelWeights& weights,
                     const CpuDeviceOptions& options)
    : LocalDevice(model, options), impl_(std::make_unique<Impl>(model, weights, options)) {}
CpuDevice::~CpuDevice() { give_back_all(); }

void CpuDevice::enter_thread() {
  if (std::this_thread::get_id() == leader_) return;  // it is pinned
  leader_ = std::this_thread::get_id();
  impl_->team_.pin_caller();
}

const char* CpuDevice::unsupported(const StepPlan& plan) const {
  if (plan.device_share != 1.0) return "the CPU engine gives a step the whole device";
  for (const Slice& slice : plan.slices) {
    if (slice.lora == LoraSite::kRemote) return "the CPU engine knows no LoRA server";
  }
  return nullptr;
}

void CpuDevice::forward(const DeviceJob& job, std::span<const DeviceAdapter* const> adapters,
                        const DeviceAdapter* folded, DeviceResult* result) {
  if (job.sequences.empty()) return;
  impl_->run(
      job, adapters,
      folded == nullptr ? nullptr : static_cast<const CpuAdapter*>(folded)->folded_.get(),
      [this](AdapterId adapter) { return arrived(adapter); }, result);
}

void CpuDevice::merge(const DeviceAdapter& adapter) {
  impl_->merge(static_cast<const CpuAdapter&>(adapter));
}
void CpuDevice::unmerge() { impl_->unmerge(); }

HostMemory CpuDevice::copy_out(const KvMove& move) {
  const auto bytes = static_cast<std::size_t>(move.tokens * impl_->kv_bytes_per_token());
  HostMemory host(new std::byte[bytes], [](std::byte* data) { delete[] data; });
  impl_->copy_context(move, host.get());
  return host;
}

void CpuDevice::copy_in(const KvMove& move, const std::byte* host) {
  // copy_context writes to `host` only on the way out.
  impl_->copy_context(move, const_cast<std::byte*>(host));
}

}  // namespace servelab
