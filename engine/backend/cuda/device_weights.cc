#include "engine/backend/cuda/device_weights.h"

#include <algorithm>
#include <utility>

#include "engine/backend/cuda/convert.h"
#include "engine/backend/device/rope_table.h"
#include "kernels/cuda/elementwise.h"

namespace servelab::cuda {
namespace {

using kernels::DType;

constexpr std::size_t kStagingBytes = std::size_t{32} << 20;
constexpr const char* kModelSetting = "the model's size";

std::size_t matrix_bytes(FusedShape shape, DType type) {
  return static_cast<std::size_t>(shape.n) * static_cast<std::size_t>(shape.k) *
         kernels::bytes_of(type);
}
std::size_t table_bytes(const ModelConfig& model, int rows, DType type) {
  return matrix_bytes({rows, model.hidden}, type);
}
std::size_t angles(const ModelConfig& model) {
  return static_cast<std::size_t>(model.max_context_tokens) *
         static_cast<std::size_t>(model.head_dim / 2);
}

// Sends host data through two pinned buffers, so that one is filled while the other is copied.
class Uploader {
 public:
  Uploader(PinnedPool* pinned, cudaStream_t stream) : stream_(stream) {
    for (Half& half : halves_) half.memory = pinned->take(kStagingBytes);
  }

  void upload(const Tensor& tensor, DType type, void* device) {
    upload(tensor.type, tensor.data,
           static_cast<std::size_t>(tensor.rows) * static_cast<std::size_t>(tensor.columns), type,
           static_cast<std::byte*>(device));
  }

  void upload(DType from_type, const void* from, std::size_t count, DType type, std::byte* device) {
    const std::size_t most = kStagingBytes / kernels::bytes_of(type);
    for (std::size_t done = 0; done < count; done += most) {
      const std::size_t part = std::min(most, count - done);
      Half& half = halves_[next_++ % 2];
      half.copied.synchronize();
      convert(from_type, static_cast<const std::byte*>(from) + done * kernels::bytes_of(from_type),
              type, half.memory.get(), part);
      check(cudaMemcpyAsync(device + done * kernels::bytes_of(type), half.memory.get(),
                            part * kernels::bytes_of(type), cudaMemcpyHostToDevice, stream_),
            "copying weights to the device");
      half.copied.record(stream_);
    }
  }

  const float* floats(const Tensor& tensor, Arena* arena) {
    auto* const out = arena->take_array<float>(static_cast<std::size_t>(tensor.columns));
    upload(tensor, DType::kF32, out);
    return out;
  }
  const float* floats(const std::vector<float>& values, Arena* arena) {
    auto* const out = arena->take_array<float>(values.size());
    upload(DType::kF32, values.data(), values.size(), DType::kF32,
           reinterpret_cast<std::byte*>(out));
    return out;
  }

  void finish() const { check(cudaStreamSynchronize(stream_), "copying weights to the device"); }

 private:
  struct Half {
    HostMemory memory;
    Event copied;
  };
  cudaStream_t stream_;
  std::array<Half, 2> halves_;
  std::size_t next_ = 0;
};

// From the generator's parameters when there are any, else from the host.
void place(const std::optional<RandomBell>& generated, const std::function<Tensor()>& tensor,
           std::size_t count, DType type, void* device, Uploader* uploader, cudaStream_t stream) {
  if (!generated.has_value()) return uploader->upload(tensor(), type, device);
  check(kernels::cuda::fill_random(kernels::RandomKind::kBell, type, generated->key,
                                   generated->step, generated->first, device,
                                   static_cast<std::int64_t>(count), stream),
        "generating random weights");
}

}  // namespace

void DeviceWeights::plan(const ModelConfig& model, ShardRange head, DType type, MemoryPlan* plan) {
  const Shapes shapes(model);
  std::size_t bytes = Arena::rounded(table_bytes(model, model.vocab, type));
  if (!model.tied_embeddings) bytes += Arena::rounded(table_bytes(model, head.count, type));
  const auto vectors = static_cast<std::size_t>(model.hidden) * sizeof(float);
  std::size_t layer = 2 * Arena::rounded(vectors);
  for (const Fused which : kAllFused) {
    layer += Arena::rounded(matrix_bytes(shapes.fused(which), type));
  }
  if (model.qkv_bias) {
    layer += Arena::rounded(static_cast<std::size_t>(shapes.qkv) * sizeof(float));
  }
  bytes += layer * static_cast<std::size_t>(model.layers) + Arena::rounded(vectors);
  plan->add("weights", bytes, kModelSetting);
  plan->add("rotary tables", 2 * Arena::rounded(angles(model) * sizeof(float)), "");
}

DeviceWeights::DeviceWeights(const ModelConfig& model, const ModelWeights& weights, ShardRange head,
                             DType type, Arena* arena, PinnedPool* pinned, cudaStream_t stream) {
  const Shapes shapes(model);
  Uploader uploader(pinned, stream);
  const auto table = [&](ModelTensor which, int rows) {
    const std::size_t bytes = table_bytes(model, rows, type);
    std::byte* const device = arena->take(bytes);
    place(
        weights.bell(which), [&] { return weights.tensor(which); }, bytes / kernels::bytes_of(type),
        type, device, &uploader, stream);
    return device;
  };
  const std::byte* const rows = table(ModelTensor::kEmbedding, model.vocab);
  embedding = rows;
  lm_head = model.tied_embeddings ? rows + table_bytes(model, head.begin, type)
                                  : table(ModelTensor::kLmHead, head.count);
  for (int l = 0; l < model.layers; ++l) {
    LayerWeights& layer = layers.emplace_back();
    for (const Fused which : kAllFused) {
      const auto k = static_cast<std::size_t>(shapes.fused(which).k);
      std::byte* const matrix = arena->take(matrix_bytes(shapes.fused(which), type));
      for (const LinearLayer linear : members(which)) {
        const FusedPlace at = place_of(shapes, linear);
        place(
            weights.bell(l, linear), [&] { return weights.linear(l, linear); },
            static_cast<std::size_t>(at.rows) * k, type,
            matrix + static_cast<std::size_t>(at.begin) * k * kernels::bytes_of(type), &uploader,
            stream);
      }
      layer.base[static_cast<std::size_t>(which)] = matrix;
    }
    layer.attention_norm = uploader.floats(weights.vector(l, LayerVector::kAttentionNorm), arena);
    layer.ffn_norm = uploader.floats(weights.vector(l, LayerVector::kFfnNorm), arena);
    if (!model.qkv_bias) continue;
    std::vector<float> bias;
    for (const LayerVector part : {LayerVector::kQBias, LayerVector::kKBias, LayerVector::kVBias}) {
      const Tensor tensor = weights.vector(l, part);
      const std::size_t begin = bias.size();
      bias.resize(begin + static_cast<std::size_t>(tensor.columns));
      convert(tensor.type, tensor.data, DType::kF32, &bias[begin],
              static_cast<std::size_t>(tensor.columns));
    }
    layer.qkv_bias = uploader.floats(bias, arena);
  }
  final_norm = uploader.floats(weights.tensor(ModelTensor::kFinalNorm), arena);
  const RopeTable rope(model);
  cos = uploader.floats(rope.cos, arena);
  sin = uploader.floats(rope.sin, arena);
  uploader.finish();
}

}  // namespace servelab::cuda
