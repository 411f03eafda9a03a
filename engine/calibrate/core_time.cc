#include "engine/calibrate/core_time.h"

#include <algorithm>
#include <chrono>

#include "engine/backend/device/adapter_storage.h"
#include "engine/backend/host_lora/compute.h"
#include "engine/core/rng.h"
#include "engine/run/real_run.h"

namespace servelab {
namespace {

double elements(const LinearShape& shape) {
  return static_cast<double>(shape.in) * static_cast<double>(shape.out);
}

std::size_t product(int a, int b) {
  return static_cast<std::size_t>(a) * static_cast<std::size_t>(b);
}

}  // namespace

CoreTime::CoreTime(const ModelConfig& model, const std::vector<std::string>& targets, int rank,
                   kernels::DType type)
    : layers_(model.layers),
      type_(type == kernels::DType::kBf16 ? type : kernels::DType::kF32),
      adapter_(std::make_unique<PackedAdapter>(*random_adapter(model, "core", rank, targets, 1),
                                               type_, 0, std::make_shared<AdapterStorage>())) {
  double own = 0;
  double all = 0;
  for (const char* const name : kLinearLayerNames) all += elements(linear_shape(model, name));
  for (const LinearLayer layer : linear_layers(targets)) {
    const LinearShape shape =
        linear_shape(model, kLinearLayerNames[static_cast<std::size_t>(layer)]);
    matrices_.push_back({layer, shape});
    own += elements(shape);
  }
  share_ = own / all;
}

CoreSample CoreTime::measure(int rows) {
  int in = 0;
  int out = 0;
  for (const Matrix& matrix : matrices_) {
    in = std::max(in, matrix.shape.in);
    out = std::max(out, matrix.shape.out);
  }
  const kernels::Ops& ops = kernels::ops(kernels::best_isa());
  const std::size_t bytes = product(rows, in) * kernels::bytes_of(type_);
  if (x_.size() < bytes) {
    RngStream rng(1, "core");
    std::vector<float> values(product(rows, in));
    for (float& value : values) value = static_cast<float>(rng.uniform()) - 0.5f;
    x_.resize(bytes);
    ops.narrow(values.data(), type_, x_.data(), static_cast<int>(values.size()));
  }
  out_.resize(std::max(out_.size(), product(rows, out)));
  host_lora::Rows layout;
  layout.x_type = type_;
  const auto begin = std::chrono::steady_clock::now();
  for (int layer = 0; layer < layers_; ++layer) {
    for (const Matrix& matrix : matrices_) {
      const host_lora::Target target{static_cast<std::int32_t>(matrix.layer), 0, matrix.shape.out};
      host_lora::compute(ops, layout, target, adapter_->find(layer, matrix.layer), x_.data(),
                         matrix.shape.in, matrix.shape.in, rows,
                         reinterpret_cast<std::byte*>(out_.data()), matrix.shape.out);
    }
  }
  const std::chrono::duration<double, std::micro> us = std::chrono::steady_clock::now() - begin;
  return {rows, adapter_->rank(), share_, us.count()};
}

}  // namespace servelab
