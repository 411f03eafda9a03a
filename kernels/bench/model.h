// The linear layers of a Llama of 134 million parameters, in one library; kCopies of the model, so
// that weights come from memory and not from a large shared cache.
#ifndef SERVELAB_KERNELS_BENCH_MODEL_H_
#define SERVELAB_KERNELS_BENCH_MODEL_H_

#include <memory>
#include <vector>

#include "kernels/bench/machine.h"

namespace servelab::kernels {

inline constexpr int kHidden = 768;
inline constexpr int kHeads = 12;
inline constexpr int kHeadDim = 64;
inline constexpr int kIntermediate = 2048;
inline constexpr int kVocabulary = 32000;
inline constexpr int kLayers = 12;
inline constexpr int kMostRows = 512;
inline constexpr int kCopies = 4;

class Model {
 public:
  // weights: at least kVocabulary * kHidden elements of `type`, the rows of every layer.
  Model(GemmLibrary library, DType type, int threads, const Memory& weights);

  // Whether the library was built in and has the type.
  bool complete() const;
  // One pass over all layers of the next copy with m rows. The head takes one row where m is a
  // prompt's length.
  void run(Team& team, int m);
  double flops(int m) const;
  double bytes() const;  // of a copy's weights
  // Largest difference from a double-precision product, over part of the first layer, m rows.
  double error(Team& team, const Memory& weights, int m);

 private:
  DType type_;
  Memory x_;
  Memory y_;
  int copy_ = 0;
  std::vector<std::unique_ptr<Linear>> copies_[kCopies];
};

// elements of `type`, uniform in [-1, 1].
Memory random_memory(DType type, std::size_t elements, unsigned seed);

}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_BENCH_MODEL_H_
