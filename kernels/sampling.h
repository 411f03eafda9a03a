// Choosing the next token from a row of logits.
#ifndef SERVELAB_KERNELS_SAMPLING_H_
#define SERVELAB_KERNELS_SAMPLING_H_

#include <cstdint>

namespace servelab::kernels {

// The largest logit's index; the smallest index among equals. NaN never wins; -1 when all are NaN.
std::int32_t argmax(const float* logits, int n);

// Draws from softmax(logits / temperature) cut to the smallest set of most likely tokens whose mass
// reaches top_p (ties by index). temperature > 0; top_p in (0, 1]; uniform in [0, 1). `scratch`
// holds n entries of 8 bytes. -1 when a logit is NaN.
std::int32_t sample_top_p(const float* logits, int n, float temperature, float top_p,
                          double uniform, void* scratch);

}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_SAMPLING_H_
