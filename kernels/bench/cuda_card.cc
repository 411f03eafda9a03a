// The card's own bounds, timing and the report.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <stdexcept>

#include "kernels/bench/cuda_bench.h"
#include "kernels/cuda/dense.h"
#include "kernels/cuda/elementwise.h"

namespace servelab::kernels::cuda {
namespace {

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { static_cast<void>(cudaEventDestroy(event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  // Waits for this event.
  double seconds_since(const Event& before) const {
    check(cudaEventSynchronize(event_), "the device");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, before.event_, event_), "cudaEventElapsedTime");
    return ms * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Median over runs that take about `budget_s` together, at least five and at most 200.
double median_seconds(cudaStream_t stream, double budget_s, const std::function<void()>& run) {
  Event begin;
  Event end;
  std::vector<double> times;
  double total = 0;
  run();  // not counted
  while (times.size() < 5 || (total < budget_s && times.size() < 200)) {
    begin.record(stream);
    run();
    end.record(stream);
    times.push_back(end.seconds_since(begin));
    total += times.back();
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                   times.end());
  return times[times.size() / 2];
}

double copy_bandwidth(cudaStream_t stream) {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  const Buffer from(kBytes);
  const Buffer to(kBytes);
  fill_uniform(from, 1, 1, stream);
  const double time = median_seconds(stream, 0.5, [&] {
    check(cudaMemcpyAsync(to.as(), from.as(), kBytes, cudaMemcpyDeviceToDevice, stream), "a copy");
  });
  return 2.0 * kBytes / time;
}

double dense_peak(cudaStream_t stream) {
  constexpr int kSize = 8192;
  constexpr std::size_t kElements = std::size_t{kSize} * kSize;
  constexpr std::size_t kWorkspace = std::size_t{32} << 20;
  const Buffer x(2 * kElements);
  const Buffer w(2 * kElements);
  const Buffer y(2 * kElements);
  const Buffer workspace(kWorkspace);
  fill_uniform(x, 2, 1, stream);
  fill_uniform(w, 3, 1, stream);
  const std::unique_ptr<Dense> dense = make_dense(workspace.as(), kWorkspace);
  if (dense == nullptr) throw std::runtime_error("cuBLASLt has no handle to give");
  const double time = median_seconds(stream, 0.5, [&] {
    check(dense->multiply(DType::kBf16, x.as(), kSize, w.as(), kSize, kSize, kSize, DType::kBf16,
                          y.as(), kSize, false, stream),
          "cuBLASLt");
  });
  return 2.0 * kSize * kElements / time;
}

double attribute(cudaDeviceAttr which) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, 0), "cudaDeviceGetAttribute");
  return value;
}

std::string format(const char* pattern, double a, double b = 0) {
  char text[64];
  std::snprintf(text, sizeof(text), pattern, a, b);
  return text;
}

}  // namespace

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
  }
}

Buffer::Buffer(std::size_t bytes) : bytes_(bytes) {
  check(cudaMalloc(&data_, bytes), "cudaMalloc");
}
Buffer::~Buffer() { static_cast<void>(cudaFree(data_)); }

void fill_uniform(const Buffer& buffer, std::uint64_t key, double bound, cudaStream_t stream) {
  constexpr RandomKind kKind = RandomKind::kUniform;
  check(fill_random(kKind, DType::kBf16, key, random_step(kKind, bound), 0, buffer.as(),
                    static_cast<std::int64_t>(buffer.bytes() / 2), stream),
        "fill_random");
}

double seconds_of_each(cudaStream_t stream, int count, double budget_s,
                       const std::function<void(int)>& enqueue) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin of capture");
  for (int i = 0; i < count; ++i) enqueue(i);
  check(cudaStreamEndCapture(stream, &graph), "end of capture");
  check(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
  const double time = median_seconds(
      stream, budget_s, [&] { check(cudaGraphLaunch(ready, stream), "cudaGraphLaunch"); });
  check(cudaGraphExecDestroy(ready), "cudaGraphExecDestroy");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  return time / count;
}

Card measure_card(cudaStream_t stream) {
  Card card;
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  card.name = properties.name;
  card.major = properties.major;
  card.multiprocessors = properties.multiProcessorCount;
  card.l2_bytes = static_cast<std::size_t>(properties.l2CacheSize);
  card.max_sm_mhz = attribute(cudaDevAttrClockRate) * 1e-3;
  card.copy_bytes_per_s = copy_bandwidth(stream);
  card.dense_flops_per_s = dense_peak(stream);
  constexpr int kLaunches = 1000;
  card.launch_s = seconds_of_each(stream, kLaunches, 0.1,
                                  [&](int) { check(launch_empty(stream), "an empty kernel"); });
  constexpr std::int64_t kCycles = 20'000'000;
  card.sm_mhz = kCycles * 1e-6 / median_seconds(stream, 0, [&] {
                  check(launch_spin(kCycles, stream), "a spinning kernel");
                });
  return card;
}

Report::Report(const Card& card, const std::string& json) : card_(card) {
  if (!json.empty() && (json_ = std::fopen(json.c_str(), "w")) == nullptr) {
    throw std::runtime_error("cannot write " + json);
  }
  write("{\"name\": \"card\", \"device\": \"" + card.name + "\"" +
        format(", \"multiprocessors\": %.0f, \"sm_mhz\": %.0f",
               static_cast<double>(card.multiprocessors), card.sm_mhz) +
        format(", \"max_sm_mhz\": %.0f, \"copy_bytes_per_s\": %.6g", card.max_sm_mhz,
               card.copy_bytes_per_s) +
        format(", \"dense_flops_per_s\": %.6g, \"launch_s\": %.6g}", card.dense_flops_per_s,
               card.launch_s));
  std::printf(
      "%s, %d multiprocessors, %.0f MHz while measuring (at most %.0f): copies %.0f GB/s, "
      "bf16 products %.0f TFLOP/s, launches %.2f us\n",
      card.name.c_str(), card.multiprocessors, card.sm_mhz, card.max_sm_mhz,
      card.copy_bytes_per_s * 1e-9, card.dense_flops_per_s * 1e-12, card.launch_s * 1e6);
  std::printf("%-16s %-52s %9s %9s %9s %7s %6s %s\n", "kernel", "shape", "us", "MB", "GFLOP",
              "copy bw", "share", "of its bound");
}

Report::~Report() {
  if (json_ != nullptr) std::fclose(json_);
}

void Report::write(const std::string& line) {
  if (json_ == nullptr) return;
  std::fprintf(json_, "%s\n", line.c_str());
  std::fflush(json_);
}

void Report::add(const Row& row) {
  const double bounds[] = {row.bytes / card_.copy_bytes_per_s, row.flops / card_.dense_flops_per_s,
                           row.launches * card_.launch_s};
  constexpr const char* kNames[] = {"bytes", "flops", "launches"};
  const auto binding = std::max_element(std::begin(bounds), std::end(bounds)) - std::begin(bounds);
  const double share = bounds[binding] / row.seconds;
  const bool correct = row.wrong == 0;
  all_correct_ &= correct;
  std::printf(
      "%-16s %-52s %9.2f %9.2f %9.3f %6.1f%% %5.1f%% %s%s\n", row.name.c_str(), row.shape.c_str(),
      row.seconds * 1e6, row.bytes * 1e-6, row.flops * 1e-9, 100 * bounds[0] / row.seconds,
      100 * share, kNames[binding],
      correct ? "" : format("  WRONG: %.0f elements", static_cast<double>(row.wrong)).c_str());
  std::string line = "{\"name\": \"" + row.name + "\", \"shape\": \"" + row.shape + "\"";
  line += format(", \"ms\": %.6g, \"bytes\": %.0f", row.seconds * 1e3, row.bytes);
  line += format(", \"flops\": %.0f, \"launches\": %.0f", row.flops, row.launches);
  line += format(", \"share_of_copy_bandwidth\": %.4f, \"share\": %.4f", bounds[0] / row.seconds,
                 share);
  line += std::string(", \"bound\": \"") + kNames[binding] + "\", \"correct\": ";
  line += correct ? "true" : "false";
  line += ", \"device\": \"" + card_.name + "\"";
  line += format(", \"sm_mhz\": %.0f, \"max_sm_mhz\": %.0f}", card_.sm_mhz, card_.max_sm_mhz);
  write(line);
}

void Report::add_ratio(const std::string& what, double ratio, double at_most) {
  std::printf("%-69s %9.3f, asked at most %.2f%s\n", what.c_str(), ratio, at_most,
              ratio > at_most ? "  ABOVE" : "");
  write("{\"name\": \"ratio\", \"shape\": \"" + what + "\"" +
        format(", \"ratio\": %.4f, \"at_most\": %.4f}", ratio, at_most));
}

}  // namespace servelab::kernels::cuda
