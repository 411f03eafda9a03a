#include "engine/backend/ranks/adapter_content.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "engine/backend/ranks/messages.h"
#include "engine/core/digest.h"

namespace servelab::ranks {
namespace {

constexpr std::size_t kFrameBytes = std::size_t{4} << 20;
constexpr int kWidestRank = 1 << 16;
constexpr int kTypes = 3;
constexpr std::size_t kBytesOfMatrix = 31;

std::size_t bytes_of(const Tensor& tensor) {
  return static_cast<std::size_t>(tensor.rows) * static_cast<std::size_t>(tensor.columns) *
         kernels::bytes_of(tensor.type);
}

std::size_t filled_up(std::size_t bytes) {
  return (bytes + kTensorGrain - 1) / kTensorGrain * kTensorGrain;
}

template <class Visit>
void for_each_matrix(const LoraWeights& weights, const Visit& visit) {
  for (int layer = 0; layer < weights.layers(); ++layer) {
    for (int i = 0; i < kLinearLayers; ++i) {
      const auto which = static_cast<LinearLayer>(i);
      const LoraMatrices* const found = weights.find(layer, which);
      if (found != nullptr) visit(layer, which, *found);
    }
  }
}

void write_tensor(const Tensor& tensor, WireWriter* out) {
  out->choice(tensor.type, kTypes, "an element type");
  out->numbers(tensor.rows, tensor.columns);
}

Tensor read_tensor(int rows, int columns, WireReader* in) {
  Tensor tensor;
  in->choice(tensor.type, kTypes, "an element type");
  in->numbers(tensor.rows, tensor.columns);
  in->require(tensor.rows == rows && tensor.columns == columns, "an adapter of another shape");
  return tensor;
}

WireWriter encode_shape(const LoraWeights& weights) {
  WireWriter matrices;
  std::uint32_t count = 0;
  for_each_matrix(weights, [&](int layer, LinearLayer which, const LoraMatrices& pair) {
    matrices.numbers(layer, which, pair.rank, pair.scale);
    write_tensor(pair.a, &matrices);
    write_tensor(pair.b, &matrices);
    ++count;
  });
  WireWriter out;
  out.numbers(weights.layers(), count);
  out.bytes(matrices.data());
  return out;
}

// Collects tensors into frames.
class ContentSender {
 public:
  ContentSender(Connection* connection, Deadline deadline)
      : connection_(connection), deadline_(deadline) {}

  void add(const Tensor& tensor) {
    const auto* data = static_cast<const std::byte*>(tensor.data);
    std::size_t left = bytes_of(tensor);
    const std::size_t fill = filled_up(left) - left;
    while (left > 0) {
      const std::size_t now = std::min(left, kFrameBytes - frame_.data().size());
      frame_.bytes({data, now});
      data += now;
      left -= now;
      if (frame_.data().size() == kFrameBytes) flush();
    }
    for (std::size_t i = 0; i < fill; ++i) frame_.numbers(std::uint8_t{0});
    if (frame_.data().size() >= kFrameBytes) flush();
  }

  void flush() {
    if (frame_.data().empty()) return;
    connection_->send(static_cast<std::uint8_t>(Message::kContent), frame_, deadline_);
    frame_ = WireWriter();
  }

 private:
  Connection* connection_;
  Deadline deadline_;
  WireWriter frame_;
};

void add_bytes(const void* data, std::size_t size, StreamHash* hash) {
  const auto* from = static_cast<const std::byte*>(data);
  for (; size >= sizeof(std::uint64_t); size -= sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, from, sizeof word);
    hash->add(word);
    from += sizeof word;
  }
  std::uint64_t word = 0;
  std::memcpy(&word, from, size);
  if (size > 0) hash->add(word);
}

}  // namespace

std::uint64_t content_digest(const LoraWeights& weights) {
  StreamHash hash;
  const WireWriter shape = encode_shape(weights);
  add_bytes(shape.data().data(), shape.data().size(), &hash);
  for_each_matrix(weights, [&](int, LinearLayer, const LoraMatrices& pair) {
    add_bytes(pair.a.data, bytes_of(pair.a), &hash);
    add_bytes(pair.b.data, bytes_of(pair.b), &hash);
  });
  return hash.value();
}

void send_content(const LoraWeights& weights, Connection* connection, Deadline deadline) {
  connection->send(static_cast<std::uint8_t>(Message::kContent), encode_shape(weights), deadline);
  ContentSender sender(connection, deadline);
  for_each_matrix(weights, [&](int, LinearLayer, const LoraMatrices& pair) {
    sender.add(pair.a);
    sender.add(pair.b);
  });
  sender.flush();
}

ContentShape decode_shape(std::span<const std::byte> message, const ModelConfig& model) {
  WireReader in(message);
  ContentShape shape;
  in.numbers(shape.layers);
  in.require(shape.layers == model.layers, "an adapter of another number of layers");
  const std::size_t count = in.count(kBytesOfMatrix, "matrices");
  int latest = -1;
  for (std::size_t i = 0; i < count; ++i) {
    ContentShape::Matrix& matrix = shape.matrices.emplace_back();
    LoraMatrices& pair = matrix.matrices;
    in.numbers(matrix.layer, matrix.which, pair.rank, pair.scale);
    in.require(matrix.layer >= 0 && matrix.layer < model.layers, "a layer that does not exist");
    in.require(static_cast<int>(matrix.which) < kLinearLayers, "an unknown linear layer");
    in.require(pair.rank >= 1 && pair.rank <= kWidestRank, "a rank that no adapter has");
    const int place = matrix.layer * kLinearLayers + static_cast<int>(matrix.which);
    if (place <= latest) damaged("an adapter's layers are not in order");
    latest = place;
    const LinearShape linear =
        linear_shape(model, kLinearLayerNames[static_cast<std::size_t>(matrix.which)]);
    pair.a = read_tensor(pair.rank, linear.in, &in);
    pair.b = read_tensor(linear.out, pair.rank, &in);
    shape.bytes += filled_up(bytes_of(pair.a)) + filled_up(bytes_of(pair.b));
  }
  in.end();
  return shape;
}

std::shared_ptr<const LoraWeights> receive_content(Connection* connection, const ModelConfig& model,
                                                   const std::string& name, std::uint64_t digest,
                                                   Deadline deadline) {
  const auto next = [&] {
    Frame frame = connection->receive(deadline);
    if (frame.kind != static_cast<std::uint8_t>(Message::kContent)) {
      damaged("an adapter's content was to follow");
    }
    return frame;
  };
  ContentShape shape = decode_shape(next().message, model);
  const auto data = std::make_shared<std::vector<std::byte>>();
  while (data->size() < shape.bytes) {
    const Frame frame = next();
    if (frame.message.empty() || frame.message.size() > shape.bytes - data->size()) {
      damaged("an adapter of another size than its layers");
    }
    data->insert(data->end(), frame.message.begin(), frame.message.end());
  }
  auto weights = std::make_shared<LoraWeights>(name, shape.layers);
  const std::byte* at = data->data();
  const auto place = [&](Tensor* tensor) {
    tensor->data = at;
    tensor->owner = data;
    at += filled_up(bytes_of(*tensor));
  };
  for (ContentShape::Matrix& matrix : shape.matrices) {
    place(&matrix.matrices.a);
    place(&matrix.matrices.b);
    weights->set(matrix.layer, matrix.which, std::move(matrix.matrices));
  }
  if (content_digest(*weights) != digest) {
    throw GroupError("adapter '" + name + "' is not what rank 0 has: its digest differs");
  }
  return weights;
}

}  // namespace servelab::ranks
