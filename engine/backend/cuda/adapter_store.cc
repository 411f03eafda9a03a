#include "engine/backend/cuda/adapter_store.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "engine/backend/cuda/convert.h"
#include "engine/core/check.h"

namespace servelab::cuda {
namespace {

using kernels::DType;
using kernels::cuda::LoraPair;

constexpr const char* kSetting = "engine.adapter_slots";

std::size_t pair_bytes(DType type, int width, int in, int out) {
  const auto elements = static_cast<std::size_t>(width) * static_cast<std::size_t>(in + out);
  return Arena::rounded(elements * kernels::bytes_of(type));
}

// Where B begins in a pair's stretch.
std::size_t a_bytes(DType type, int width, int in) {
  return static_cast<std::size_t>(width) * static_cast<std::size_t>(in) * kernels::bytes_of(type);
}

std::size_t index_of(int layer, LinearLayer which) {
  return static_cast<std::size_t>(layer * kLinearLayers) + static_cast<std::size_t>(which);
}

std::size_t table_entries(const ModelConfig& model) {
  return static_cast<std::size_t>(model.layers * kLinearLayers);
}

// Room for the adapters of a plan: slots as wide as the widest, or what all take together, with
// their ranks rounded up and a layer's stretch for what does not fit between others.
std::size_t area_bytes(const ModelConfig& model, const DevicePlan& device) {
  std::size_t layer = 0;
  std::size_t exact = 0;
  const int width = padded_rank(std::max(1, device.widest_rank));
  for (const LinearLayer which : device.targets) {
    const LinearShape shape =
        linear_shape(model, kLinearLayerNames[static_cast<std::size_t>(which)]);
    layer += pair_bytes(device.type, width, shape.in, shape.out);
    exact += static_cast<std::size_t>(shape.in + shape.out);
  }
  const auto adapters = static_cast<std::size_t>(device.adapters);
  const auto layers = static_cast<std::size_t>(model.layers);
  const std::size_t padded = layer * layers * adapters;
  if (device.padded || exact == 0) return padded;
  // Each adapter of rank r takes less than rank r + 7 would, and at most kAlignment - 1 per pair.
  const std::size_t rounding =
      adapters * layers *
      (7 * exact * kernels::bytes_of(device.type) + device.targets.size() * Arena::kAlignment);
  return std::min(padded, static_cast<std::size_t>(device.adapter_bytes) + rounding) + layer;
}

}  // namespace

// --- an adapter ---

CudaAdapter::~CudaAdapter() { store_->release(this); }

const LoraPair* CudaAdapter::find(int layer, LinearLayer which) const {
  const LoraPair& pair = pairs_[index_of(layer, which)];
  return pair.rank == 0 ? nullptr : &pair;
}

void CudaAdapter::wait() const {
  here_.back().synchronize();
  arrived_.store(true);
}

bool CudaAdapter::arrived() const {
  if (arrived_.load()) return true;
  if (!here_.back().reached()) return false;
  arrived_.store(true);
  return true;
}

void CudaAdapter::become_folded(std::vector<Matrices> folded, std::shared_ptr<void> memory,
                                cudaStream_t stream) {
  folded_ = std::move(folded);
  folded_memory_ = std::move(memory);
  here_.back().record(stream);
  arrived_.store(false);
}

void CudaAdapter::hold(cudaStream_t stream, int layer) const {
  here_[static_cast<std::size_t>(layer)].hold(stream);
}

// --- the store ---

void AdapterStore::plan(const ModelConfig& model, const DevicePlan& device, MemoryPlan* plan) {
  if (device.adapters == 0) return;
  plan->add("adapters", Arena::rounded(area_bytes(model, device)), kSetting);
  plan->add("adapters",
            Arena::rounded(table_entries(model) * static_cast<std::size_t>(device.adapters) *
                           sizeof(LoraPair)),
            kSetting);
}

AdapterStore::AdapterStore(const ModelConfig& model, const DevicePlan& device, Arena* arena,
                           PinnedPool* pinned)
    : model_(model),
      type_(device.type),
      device_(device.device),
      slots_(device.adapters),
      pinned_(pinned),
      free_(slots_ > 0 ? area_bytes(model, device) / Arena::kAlignment * Arena::kAlignment : 0),
      free_slots_(static_cast<std::size_t>(slots_)) {
  std::iota(free_slots_.rbegin(), free_slots_.rend(), 0);
  if (slots_ == 0) return;
  area_ = arena->take(area_bytes(model, device));
  const std::size_t entries = table_entries(model) * static_cast<std::size_t>(slots_);
  table_ = arena->take_array<LoraPair>(entries);
  check(cudaMemsetAsync(table_, 0, entries * sizeof(LoraPair), stream_.get()),
        "clearing the adapter table");
  stream_.synchronize();
}

const LoraPair* AdapterStore::pairs(int layer, LinearLayer which) const {
  return table_ + index_of(layer, which) * static_cast<std::size_t>(slots_);
}

std::size_t AdapterStore::layer_bytes(const LoraWeights& weights, int layer, int width) const {
  std::size_t bytes = 0;
  for (int t = 0; t < kLinearLayers; ++t) {
    const LoraMatrices* const m = weights.find(layer, static_cast<LinearLayer>(t));
    if (m == nullptr) continue;
    bytes += pair_bytes(type_, std::max(width, padded_rank(m->rank)), m->a.columns, m->b.rows);
  }
  return bytes;
}

// A's rows as the first of `width` rows, B's columns as the first of `width` columns; zeros beyond.
void AdapterStore::pack_layer(const LoraWeights& weights, int layer, int width,
                              std::byte* out) const {
  const std::size_t element = kernels::bytes_of(type_);
  for (int t = 0; t < kLinearLayers; ++t) {
    const LoraMatrices* const m = weights.find(layer, static_cast<LinearLayer>(t));
    if (m == nullptr) continue;
    const int wide = std::max(width, padded_rank(m->rank));
    const std::size_t a = a_bytes(type_, wide, m->a.columns);
    const std::size_t given = a_bytes(type_, m->rank, m->a.columns);
    convert(m->a.type, m->a.data, type_, out,
            static_cast<std::size_t>(m->rank) * static_cast<std::size_t>(m->a.columns));
    std::memset(out + given, 0, a - given);
    const std::size_t row = static_cast<std::size_t>(wide) * element;
    const std::size_t used = static_cast<std::size_t>(m->rank) * element;
    const auto* const b = static_cast<const std::byte*>(m->b.data);
    for (int i = 0; i < m->b.rows; ++i) {
      const auto r = static_cast<std::size_t>(i);
      std::byte* const to = out + a + r * row;
      convert(m->b.type, b + r * static_cast<std::size_t>(m->rank) * kernels::bytes_of(m->b.type),
              type_, to, static_cast<std::size_t>(m->rank));
      std::memset(to + used, 0, row - used);
    }
    out += pair_bytes(type_, wide, m->a.columns, m->b.rows);
  }
}

// Takes a slot and a stretch for each layer, and writes down where the pairs will lie.
void AdapterStore::place(const LoraWeights& weights, int width, CudaAdapter* adapter) {
  adapter->pairs_.resize(table_entries(model_));
  adapter->stretches_.resize(static_cast<std::size_t>(model_.layers));
  const std::lock_guard lock(mutex_);
  if (free_slots_.empty()) {
    throw SpecError("the device holds " + std::to_string(slots_) +
                    " adapters at once, as planned; one more does not fit");
  }
  adapter->slot_ = free_slots_.back();
  free_slots_.pop_back();
  for (int layer = 0; layer < model_.layers; ++layer) {
    const std::size_t size = layer_bytes(weights, layer, width);
    if (size == 0) continue;
    const auto offset = free_.take(size);
    if (!offset.has_value()) {
      throw SpecError(
          "no room for adapter '" + weights.name() +
          "' on the device: " + std::to_string(free_.free_bytes() / kKiB) +
          " KiB are free, but no more than " + std::to_string(free_.longest_free() / kKiB) +
          " KiB of it in one stretch; use engine.adapter_memory: slots or fewer adapters");
    }
    adapter->stretches_[static_cast<std::size_t>(layer)] = {*offset, size};
    std::byte* next = area_ + *offset;
    for (int t = 0; t < kLinearLayers; ++t) {
      const auto which = static_cast<LinearLayer>(t);
      const LoraMatrices* const m = weights.find(layer, which);
      if (m == nullptr) continue;
      LoraPair& pair = adapter->pairs_[index_of(layer, which)];
      pair.width = std::max(width, padded_rank(m->rank));
      pair.rank = m->rank;
      pair.scale = m->scale;
      pair.a = next;
      pair.b = next + a_bytes(type_, pair.width, m->a.columns);
      next += pair_bytes(type_, pair.width, m->a.columns, m->b.rows);
      adapter->width_ = std::max(adapter->width_, pair.width);
    }
  }
}

const AdapterStore::Image* AdapterStore::image_of(const LoraWeights& weights, int width) const {
  const auto found = images_.find(&weights);
  return found != images_.end() && found->second.width == width ? &found->second : nullptr;
}

void AdapterStore::copy_layers(const LoraWeights& weights, int width, CudaAdapter* adapter) {
  const cudaStream_t stream = stream_.get();
  // The table first: a step that waits for any layer then finds the pairs too.
  const std::size_t column = adapter->pairs_.size() * sizeof(LoraPair);
  adapter->host_pairs_ = pinned_->take(column);
  std::memcpy(adapter->host_pairs_.get(), adapter->pairs_.data(), column);
  check(cudaMemcpy2DAsync(table_ + adapter->slot_,
                          static_cast<std::size_t>(slots_) * sizeof(LoraPair),
                          adapter->host_pairs_.get(), sizeof(LoraPair), sizeof(LoraPair),
                          adapter->pairs_.size(), cudaMemcpyHostToDevice, stream),
        "copying an adapter's table to the device");
  const Image* const image = image_of(weights, width);
  const std::byte* from = image != nullptr ? image->data.get() : nullptr;
  for (int layer = 0; layer < model_.layers; ++layer) {
    const auto& [offset, size] = adapter->stretches_[static_cast<std::size_t>(layer)];
    const std::byte* source = from;
    const int half = layer % 2;
    if (size > 0 && image == nullptr) {
      staged_[half].synchronize();
      if (staging_[half] == nullptr || staging_sizes_[half] < size) {
        staging_[half] = pinned_->take(size);
        staging_sizes_[half] = size;
      }
      pack_layer(weights, layer, width, staging_[half].get());
      source = staging_[half].get();
    }
    if (size > 0) {
      check(cudaMemcpyAsync(area_ + offset, source, size, cudaMemcpyHostToDevice, stream),
            "copying an adapter to the device");
      if (image == nullptr) staged_[half].record(stream);
    }
    if (image != nullptr) from += size;
    adapter->here_[static_cast<std::size_t>(layer)].record(stream);
  }
  adapter->here_.back().record(stream);
}

std::unique_ptr<CudaAdapter> AdapterStore::load(const LoraWeights& weights, int width) {
  SL_CHECK(weights.layers() == model_.layers, "an adapter has its model's layers");
  check(cudaSetDevice(device_), "choosing the device");
  const int wide = width == 0 ? 0 : padded_rank(width);
  std::unique_ptr<CudaAdapter> adapter(new CudaAdapter(shared_from_this()));
  for (int i = 0; i <= model_.layers; ++i) adapter->here_.emplace_back();
  place(weights, wide, adapter.get());
  const std::lock_guard lock(loading_);
  copy_layers(weights, wide, adapter.get());
  return adapter;
}

void AdapterStore::hold_on_host(std::shared_ptr<const LoraWeights> weights, int width) {
  Image image;
  image.width = width == 0 ? 0 : padded_rank(width);
  std::size_t total = 0;
  for (int layer = 0; layer < model_.layers; ++layer) {
    image.sizes.push_back(layer_bytes(*weights, layer, image.width));
    total += image.sizes.back();
  }
  image.data = pinned_->take(total);
  std::byte* next = image.data.get();
  for (int layer = 0; layer < model_.layers; ++layer) {
    pack_layer(*weights, layer, image.width, next);
    next += image.sizes[static_cast<std::size_t>(layer)];
  }
  const LoraWeights* const key = weights.get();
  image.weights = std::move(weights);
  const std::lock_guard lock(loading_);
  images_.insert_or_assign(key, std::move(image));
}

void AdapterStore::release(CudaAdapter* adapter) {
  if (!adapter->here_.empty() && adapter->host_pairs_ != nullptr) {
    // Still on its way: what it is copied to must not become another's.
    cudaSetDevice(device_);
    if (!adapter->arrived_.load()) cudaStreamSynchronize(stream_.get());
  }
  const std::lock_guard lock(mutex_);
  for (const auto& [offset, size] : adapter->stretches_) {
    if (size > 0) free_.give(offset, size);
  }
  if (adapter->slot_ >= 0) free_slots_.push_back(adapter->slot_);
}

}  // namespace servelab::cuda
