// The functions of kernels/cuda/platform_gpu_sm90.cuh on the host; see there for what they do.
#ifndef SERVELAB_TESTS_KERNELS_CUDA_HOST_PLATFORM_HOST_SM90_H_
#define SERVELAB_TESTS_KERNELS_CUDA_HOST_PLATFORM_HOST_SM90_H_

#include <cstdint>

#include "kernels/dtype.h"
#include "tests/kernels/cuda_host/where.h"

namespace servelab::kernels::cuda {

// What make_tensor_map() puts in; the driver's own is opaque.
struct TensorMap {
  const char* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride_bytes = 0;
  int box_rows = 0;
};

using Where = ::servelab::cuda_host::Where;

void copy_barrier_init(std::uint64_t* barrier, const Where& where = Where::current());
void copy_barrier_expect(std::uint64_t* barrier, int bytes, const Where& where = Where::current());
void copy_barrier_wait(std::uint64_t* barrier, int phase, const Where& where = Where::current());
// The box holds NaN until its barrier is awaited.
void copy_box(void* shared, const TensorMap& map, int column, int row, std::uint64_t* barrier,
              const Where& where = Where::current());
inline void publish_to_products() {}

void products_begin(const Where& where = Where::current());
void products_commit(const Where& where = Where::current());
void products_wait(const Where& where);
template <int kCount>
void products_wait(float (&)[kCount], const Where& where = Where::current()) {
  products_wait(where);
}

// Descriptors hold the offset within the block's shared memory.
std::uint64_t rows_for_product(const void* tile, int step, const Where& where = Where::current());

// At once, so that sums do not show a missing wait.
template <class T>
void multiply_rows(float* sums, int columns, std::uint64_t a, std::uint64_t b, const Where& where);
template <class T, int kCount>
void multiply_rows(float (&sums)[kCount], std::uint64_t a, std::uint64_t b,
                   const Where& where = Where::current()) {
  multiply_rows<T>(sums, 2 * kCount, a, b, where);
}

}  // namespace servelab::kernels::cuda

#endif  // SERVELAB_TESTS_KERNELS_CUDA_HOST_PLATFORM_HOST_SM90_H_
