// Where a device function was called from. As std::source_location, which Clang 14 has not got.
#ifndef SERVELAB_TESTS_KERNELS_CUDA_HOST_WHERE_H_
#define SERVELAB_TESTS_KERNELS_CUDA_HOST_WHERE_H_

namespace servelab::cuda_host {

struct Where {
  const char* file;
  int line;

  // As a default argument: the place of the call.
  static constexpr Where current(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

}  // namespace servelab::cuda_host

#endif  // SERVELAB_TESTS_KERNELS_CUDA_HOST_WHERE_H_
