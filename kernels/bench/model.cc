#include "kernels/bench/model.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/ref/ref.h"

namespace servelab::kernels {
namespace {

struct Shape {
  int n;
  int k;
};
constexpr Shape kLayer[] = {{3 * kHidden, kHidden},
                            {kHidden, kHidden},
                            {2 * kIntermediate, kHidden},
                            {kHidden, kIntermediate}};

constexpr int kMostHeadRows = 64;

int rows_of(const Linear& layer, int m) {
  return layer.n() != kVocabulary || m <= kMostHeadRows ? m : 1;
}

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

Model::Model(GemmLibrary library, DType type, int threads, const Memory& weights)
    : type_(type),
      x_(random_memory(type, std::size_t{kMostRows} * kIntermediate, 1)),
      y_(std::max(std::size_t{kMostHeadRows} * kVocabulary,
                  std::size_t{kMostRows} * 2 * kIntermediate) *
         sizeof(float)) {
  for (auto& layers : copies_) {
    const auto add = [&](Shape shape) {
      layers.push_back(make_linear(library, ops(best_isa()), type, shape.n, shape.k, threads));
      for (int part = 0; part < threads && layers.back() != nullptr; ++part) {
        layers.back()->pack(part, type, weights.data(), shape.k);
      }
    };
    for (int layer = 0; layer < kLayers; ++layer) std::for_each(kLayer, kLayer + 4, add);
    add({kVocabulary, kHidden});
  }
}

bool Model::complete() const { return copies_[0].front() != nullptr; }

void Model::run(Team& team, int m) {
  copy_ = (copy_ + 1) % kCopies;
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
