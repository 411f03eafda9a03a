#include "kernels/bench/model.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/ref/ref.h"

namespace servelab::kernels {
namespace {

constexpr int kMostHeadRows = 64;

}  // namespace

Memory random_memory(DType type, std::size_t elements, unsigned seed) {
  Memory memory(elements * bytes_of(type));
  std::minstd_rand random(seed);
  for (std::size_t i = 0; i < elements; ++i) {
    ref::store(type, memory.data(), static_cast<std::int64_t>(i),
               static_cast<float>(random() % 2001) / 1000 - 1);
  }
  return memory;
}

Model::Model(const ModelShape& shape, const KernelChoice& choice, DType type, int threads,
             const Memory& weights, int copies)
    : shape_(shape),
      type_(type),
      x_(random_memory(type, std::size_t{kMostRows} * static_cast<std::size_t>(shape.intermediate),
                       1)),
      y_(static_cast<std::size_t>(
             std::max(kMostHeadRows * shape.vocabulary, kMostRows * 2 * shape.intermediate)) *
         sizeof(float)),
      copies_(static_cast<std::size_t>(copies)) {
  for (auto& layers : copies_) {
    const auto add = [&](int n, int k) {
      layers.push_back(make_linear(choice.gemm, ops(choice.isa), type, n, k, threads));
      for (int part = 0; part < threads; ++part) {
        layers.back()->pack(part, type, weights.data(), k);
      }
    };
    for (int layer = 0; layer < shape.layers; ++layer) {
      add(3 * shape.hidden, shape.hidden);
      add(shape.hidden, shape.hidden);
      add(2 * shape.intermediate, shape.hidden);
      add(shape.hidden, shape.intermediate);
    }
    if (shape.vocabulary > 0) add(shape.vocabulary, shape.hidden);
  }
}

int Model::rows_of(const Linear& layer, int m) const {
  return layer.n() != shape_.vocabulary || m <= kMostHeadRows ? m : 1;
}

void Model::run(Team& team, int m) {
  copy_ = (copy_ + 1) % copies_.size();
  team.run([&](int part) {
    for (const auto& layer : copies_[copy_]) {
      layer->run(part, x_.data(), layer->k(), y_.floats(), layer->n(), rows_of(*layer, m),
                 Store::kSet);
      team.meet();
    }
  });
}

double Model::flops(int m) const {
  double sum = 0;
  for (const auto& layer : copies_[0]) sum += 2.0 * layer->n() * layer->k() * rows_of(*layer, m);
  return sum;
}

double Model::bytes() const {
  double sum = 0;
  for (const auto& layer : copies_[0]) sum += static_cast<double>(layer->n()) * layer->k();
  return sum * static_cast<double>(bytes_of(type_));
}

double Model::error(Team& team, const Memory& weights, int m) {
  Linear& layer = *copies_[0][0];
  team.run([&](int part) {
    layer.run(part, x_.data(), layer.k(), y_.floats(), layer.n(), m, Store::kSet);
  });
  double worst = 0;
  for (int j = 0; j < layer.n(); j += 101) {
    for (int i = 0; i < m; i += 7) {
      double sum = 0;
      for (int k = 0; k < layer.k(); ++k) {
        sum += double{ref::load(type_, x_.data(), std::int64_t{i} * layer.k() + k)} *
               ref::load(type_, weights.data(), std::int64_t{j} * layer.k() + k);
      }
      worst = std::max(worst, std::fabs(sum - y_.floats()[std::int64_t{i} * layer.n() + j]));
    }
  }
  return worst;
}

}  // namespace servelab::kernels
