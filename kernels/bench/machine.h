// A team of threads, memory, and what this machine can do at best: the bounds that kernels are
// measured against, taken in the same run.
#ifndef SERVELAB_KERNELS_BENCH_MACHINE_H_
#define SERVELAB_KERNELS_BENCH_MACHINE_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/ops.h"

namespace servelab::kernels {

// Threads that run the same function together, each pinned to a processor of its own.
class Team {
 public:
  explicit Team(int size);
  ~Team();
  int size() const { return size_; }
  // Calls work(part) for part 0 .. size - 1, part 0 in this thread; returns when all are done.
  void run(const std::function<void(int)>& work);
  // Within work: waits for the whole team.
  void meet();

 private:
  void follow(int part);

  int size_;
  const std::function<void(int)>* work_ = nullptr;
  std::atomic<int> round_{0};
  std::atomic<int> arrived_{0};
  std::atomic<int> meetings_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

// 64-byte aligned zeros, in huge pages where the system grants them.
class Memory {
 public:
  explicit Memory(std::size_t bytes);
  void* data() const { return data_.get(); }
  float* floats() const { return static_cast<float*>(data()); }

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> data_;
};

struct Machine {
  double bytes_per_s = 0;      // read by the whole team from memory
  double dot_flops_per_s = 0;  // of the whole team, from registers: with bf16 dot products,
  double fma_flops_per_s = 0;  // and with f32 multiply-adds
  // bf16 may take either way.
  double flops_per_s(DType type) const {
    return type == DType::kBf16 && dot_flops_per_s > fma_flops_per_s ? dot_flops_per_s
                                                                     : fma_flops_per_s;
  }
};
Machine measure(Team& team);

// Seconds of `run` at its fastest: what disturbs a run on a shared machine only ever adds.
double seconds(const std::function<void()>& run);

}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_BENCH_MACHINE_H_
