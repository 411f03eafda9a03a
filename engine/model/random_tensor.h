// Tensors of pseudo-random bf16 values. Element i depends on the key and on i alone, through
// integer arithmetic and one rounded multiplication: the same on every machine.
#ifndef SERVELAB_MODEL_RANDOM_TENSOR_H_
#define SERVELAB_MODEL_RANDOM_TENSOR_H_

#include <cstdint>
#include <initializer_list>

#include "engine/model/weights.h"

namespace servelab {

// Names a stream of values.
std::uint64_t random_key(std::initializer_list<std::uint64_t> words);

// A bell curve around 0 (the sum of four uniform values: never beyond 3.5 deviations).
Tensor random_bell(int rows, int columns, double deviation, std::uint64_t key);

// Uniform in (-bound, bound).
Tensor random_uniform(int rows, int columns, double bound, std::uint64_t key);

Tensor constant_vector(int columns, float value);

}  // namespace servelab

#endif  // SERVELAB_MODEL_RANDOM_TENSOR_H_
