// What the benchmarks of the CUDA kernels share: the card's own bounds, timing, and rows.
#ifndef SERVELAB_KERNELS_BENCH_CUDA_BENCH_H_
#define SERVELAB_KERNELS_BENCH_CUDA_BENCH_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/lora.h"

namespace servelab::kernels::cuda {

void check(cudaError_t error, const char* what);  // throws std::runtime_error

// Device memory. cudaErrorMemoryAllocation throws.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  template <class T = void>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_;
  void* data_ = nullptr;
};

template <class T>
class BufferOf : public Buffer {
 public:
  explicit BufferOf(const std::vector<T>& values) : Buffer(values.size() * sizeof(T)) {
    check(cudaMemcpy(as(), values.data(), bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  T* get() const { return as<T>(); }
};

// bf16 values in (-bound, bound), other ones for each key.
void fill_uniform(const Buffer& buffer, std::uint64_t key, double bound, cudaStream_t stream);

// What the card can do at best, measured in the same run.
struct Card {
  std::string name;
  int major = 0;  // of the compute capability
  int multiprocessors = 0;
  std::size_t l2_bytes = 0;
  double copy_bytes_per_s = 0;   // a copy of 1 GiB within the device, bytes read and written
  double dense_flops_per_s = 0;  // bf16, 8192 x 8192 x 8192, cuBLASLt
  double launch_s = 0;           // one of a chain of empty kernels in a graph
  double sm_mhz = 0;             // cycles of a spinning kernel per time
  double max_sm_mhz = 0;         // as the driver says
};
Card measure_card(cudaStream_t stream);

// Median seconds of one of `count` calls, enqueue(0) to enqueue(count - 1), captured in a graph
// that is replayed for about `budget_s`.
double seconds_of_each(cudaStream_t stream, int count, double budget_s,
                       const std::function<void(int)>& enqueue);

struct Row {
  std::string name;
  std::string shape;
  double seconds = 0;
  double bytes = 0;  // that must be read and written
  double flops = 0;
  int launches = 0;
  std::int64_t wrong = 0;  // elements that differ from the naive result
};

// Prints rows as they come, and writes each at once as a line of JSON, the card's first: what a
// benchmark that is cut off has measured is not lost.
class Report {
 public:
  // `json`: a file, or empty. Throws std::runtime_error when it cannot be written.
  explicit Report(const Card& card, const std::string& json = "");
  ~Report();
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;
  const Card& card() const { return card_; }
  void add(const Row& row);
  // One measured time over another, and what is asked of that.
  void add_ratio(const std::string& what, double ratio, double at_most);
  bool all_correct() const { return all_correct_; }

 private:
  void write(const std::string& line);

  Card card_;
  std::FILE* json_ = nullptr;
  bool all_correct_ = true;
};

void bench_lora(Report& report, cudaStream_t stream, double seconds);
void bench_host_rows(Report& report, cudaStream_t stream, double seconds);

// Elements of y that are not y_before + scale * (x A^T) B^T, computed in f64 by one thread each,
// within the roundings of t and y. bf16; dense rows; row i's adapter is pairs[slots[i]].
std::int64_t count_wrong_lora(const LoraPair* pairs, const std::int32_t* slots, int rows, int in,
                              int out, const void* x, const void* y_before, const void* y,
                              cudaStream_t stream);

// A kernel that does nothing, and one that spins for `cycles`.
cudaError_t launch_empty(cudaStream_t stream);
cudaError_t launch_spin(std::int64_t cycles, cudaStream_t stream);

}  // namespace servelab::kernels::cuda

#endif  // SERVELAB_KERNELS_BENCH_CUDA_BENCH_H_
