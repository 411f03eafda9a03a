// The libraries behind make_linear(). Each maker returns null when its library was not built in or
// lacks the type.
#ifndef SERVELAB_KERNELS_CPU_LINEAR_H_
#define SERVELAB_KERNELS_CPU_LINEAR_H_

#include <cstddef>
#include <memory>

#include "kernels/gemm.h"

namespace servelab::kernels {

std::unique_ptr<Linear> make_native_linear(const Ops& ops, DType type, int n, int k, int parts);
std::unique_ptr<Linear> make_eigen_linear(DType type, int n, int k, int parts);
std::unique_ptr<Linear> make_onednn_linear(DType type, int n, int k, int parts);

bool built_with_eigen();
bool built_with_onednn();

// Memory for weights: 64-byte aligned, in huge pages where it is large and the system grants them.
class WeightBuffer {
 public:
  explicit WeightBuffer(std::size_t bytes);
  void* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> data_;
};

}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_CPU_LINEAR_H_
