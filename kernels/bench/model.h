// The linear layers of a Llama, by one choice of kernels.
#ifndef SERVELAB_KERNELS_BENCH_MODEL_H_
#define SERVELAB_KERNELS_BENCH_MODEL_H_

#include <memory>
#include <vector>

#include "kernels/bench/machine.h"
#include "kernels/choice.h"

namespace servelab::kernels {

// A Llama of 134 million parameters.
inline constexpr int kHidden = 768;
inline constexpr int kHeads = 12;
inline constexpr int kHeadDim = 64;
inline constexpr int kIntermediate = 2048;
inline constexpr int kVocabulary = 32000;
inline constexpr int kLayers = 12;
inline constexpr int kMostRows = 512;

struct ModelShape {
  const char* name;
  int hidden;
  int intermediate;
  int vocabulary;  // 0: no head
  int layers;

  constexpr std::size_t largest() const {  // elements of a matrix
    const int n = vocabulary > 2 * intermediate ? vocabulary : 2 * intermediate;
    return static_cast<std::size_t>(n) * static_cast<std::size_t>(hidden);
  }
};
inline constexpr ModelShape kLlama134m = {"Llama, 134M", kHidden, kIntermediate, kVocabulary,
                                          kLayers};
inline constexpr ModelShape kLlama7bLayer = {"a layer of Llama 7B", 4096, 11008, 0, 1};

// Of a model that is timed by itself, so that weights come from memory and not from a large shared
// cache.
inline constexpr int kCopies = 4;

class Model {
 public:
  // choice: of kernel_choices(type). weights: shape.largest() elements of `type`, the rows of every
  // layer.
  Model(const ModelShape& shape, const KernelChoice& choice, DType type, int threads,
        const Memory& weights, int copies);

  // One pass over all layers of the next copy with m rows. The head takes one row where m is a
  // prompt's length.
  void run(Team& team, int m);
  double flops(int m) const;
  double bytes() const;  // of a copy's weights
  // Largest difference from a double-precision product, over part of the first layer, m rows.
  double error(Team& team, const Memory& weights, int m);

 private:
  int rows_of(const Linear& layer, int m) const;

  ModelShape shape_;
  DType type_;
  Memory x_;
  Memory y_;
  std::size_t copy_ = 0;
  std::vector<std::vector<std::unique_ptr<Linear>>> copies_;
};

// elements of `type`, uniform in [-1, 1].
Memory random_memory(DType type, std::size_t elements, unsigned seed);

}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_BENCH_MODEL_H_
