#include "kernels/attention.h"

#include "kernels/cpu/attention_scratch.h"

namespace servelab::kernels {

std::size_t attention_scratch(const KvCache& cache, int group) {
  return layout_attention_scratch(cache.type, cache.head_dim, group).bytes;
}

}  // namespace servelab::kernels
