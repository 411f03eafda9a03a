// Rows that go to the host and come back (kernels/cuda/host_rows.h), beside the copy engine that
// moves as many bytes without a signal or a sum.
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/bench/cuda_bench.h"
#include "kernels/cuda/host_rows.h"

namespace servelab::kernels::cuda {
namespace {

constexpr int kHidden = 4096;
constexpr std::size_t kElement = 2;  // bytes of a bf16
constexpr int kCalls = 16;           // in one graph

class Pinned {
 public:
  explicit Pinned(std::size_t bytes) { check(cudaMallocHost(&data_, bytes), "cudaMallocHost"); }
  ~Pinned() { static_cast<void>(cudaFreeHost(data_)); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  template <class T = void>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

void bench(Report& report, cudaStream_t stream, int rows, double budget_s) {
  const std::size_t bytes = static_cast<std::size_t>(rows) * kHidden * kElement;
  const Buffer x(bytes);
  const Buffer y(bytes);
  const BufferOf<std::int32_t> arrived({0});
  const Pinned host(bytes);
  const Pinned signal(sizeof(std::uint32_t));
  const RowStretches all{{0, 0}, {rows, 0}};
  fill_uniform(x, 1, 1, stream);
  fill_uniform(y, 2, 1, stream);
  const auto send = [&](int) {
    check(send_rows(x.as(), kHidden, all, kHidden, host.as(), signal.as<std::uint32_t>(), 1,
                    arrived.get(), stream),
          "send_rows");
  };
  const auto add = [&](int) {
    check(add_rows(DType::kBf16, host.as(), all, kHidden, DType::kBf16, y.as(), kHidden, stream),
          "add_rows");
  };
  const auto copy = [&](void* to, const void* from) {
    return seconds_of_each(stream, kCalls, budget_s, [&](int) {
      check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
    });
  };
  send(0);
  std::vector<char> expected(bytes);
  check(cudaMemcpyAsync(expected.data(), x.as(), bytes, cudaMemcpyDefault, stream), "a copy");
  check(cudaStreamSynchronize(stream), "send_rows");
  if (std::memcmp(host.as(), expected.data(), bytes) != 0 || *signal.as<std::uint32_t>() != 1) {
    throw std::runtime_error("send_rows: what came to the host is wrong");
  }
  const std::string shape = std::to_string(rows) + " rows of " + std::to_string(kHidden);
  constexpr double kAsked = 1.25;
  report.add_ratio("send_rows over cudaMemcpyAsync to the host, " + shape,
                   seconds_of_each(stream, kCalls, budget_s, send) / copy(host.as(), x.as()),
                   kAsked);
  report.add_ratio("add_rows over cudaMemcpyAsync from the host, " + shape,
                   seconds_of_each(stream, kCalls, budget_s, add) / copy(y.as(), host.as()),
                   kAsked);
}

}  // namespace

void bench_host_rows(Report& report, cudaStream_t stream, double seconds) {
  constexpr int kRows[] = {16, 64, 512};
  constexpr int kTimings = 4;  // of each
  for (const int rows : kRows) bench(report, stream, rows, seconds / kTimings / std::size(kRows));
}

}  // namespace servelab::kernels::cuda
