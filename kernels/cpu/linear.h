// The libraries behind make_linear(). Each maker returns null when its library was not built in or
// lacks the type.
#ifndef SERVELAB_KERNELS_CPU_LINEAR_H_
#define SERVELAB_KERNELS_CPU_LINEAR_H_

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

#include "kernels/gemm.h"

namespace servelab::kernels {

std::unique_ptr<Linear> make_native_linear(const Ops& ops, DType type, int n, int k, int parts);
std::unique_ptr<Linear> make_eigen_linear(DType type, int n, int k, int parts);
std::unique_ptr<Linear> make_onednn_linear(DType type, int n, int k, int parts);

bool built_with_eigen();
bool built_with_onednn();

// Memory for weights: 64-byte aligned.
class WeightBuffer {
 public:
  explicit WeightBuffer(std::size_t bytes)
      : data_(std::aligned_alloc(64, (bytes + 63) / 64 * 64 + 64)) {
    if (data_ == nullptr) throw std::bad_alloc();
  }
  void* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> data_;
};

}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_CPU_LINEAR_H_
