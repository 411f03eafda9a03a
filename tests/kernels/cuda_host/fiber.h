// Stacks that the executor switches between: one per thread of a block.
#ifndef SERVELAB_TESTS_KERNELS_CUDA_HOST_FIBER_H_
#define SERVELAB_TESTS_KERNELS_CUDA_HOST_FIBER_H_

#include <cstddef>
#include <memory>

namespace servelab::cuda_host {

// A suspended flow of control on a stack of its own. Not for several OS threads.
class Fiber {
 public:
  using Entry = void (*)(void* argument);  // must never return
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Makes the next enter() begin `entry`. What ran here before is forgotten.
  void start(Entry entry, void* argument);
  void enter();  // from the executor: runs until leave()
  void leave();  // from within: back to who entered

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace servelab::cuda_host

#endif  // SERVELAB_TESTS_KERNELS_CUDA_HOST_FIBER_H_
