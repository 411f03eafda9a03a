// Validates the CUDA kernels, then times them beside the card's own copy bandwidth, cuBLASLt peak
// and launch cost. Usage: servelab_cuda_bench [--json FILE] [--seconds S]
//
// `share` is the binding bound's time over the measured one: bytes at the speed of a copy, flops at
// that of a large product, or the launches alone. Exits 0, saying "skipped" and why, where there is
// no GPU; 1 when a result is wrong or a call fails; 2 on wrong arguments.
#include "kernels/bench/cuda_bench.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

namespace {

using namespace servelab::kernels::cuda;

struct Arguments {
  std::string json;
  double seconds = 40;  // of timing; validation comes on top
};

bool parse(int argc, char** argv, Arguments& arguments) {
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc) return false;
    const std::string_view name = argv[i];
    if (name == "--json") {
      arguments.json = argv[i + 1];
    } else if (name == "--seconds") {
      char* end = nullptr;
      arguments.seconds = std::strtod(argv[i + 1], &end);
      if (*end != '\0' || !(arguments.seconds > 0)) return false;
    } else {
      return false;
    }
  }
  return true;
}

// Why there is nothing to run on; empty where there is.
std::string why_no_device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  return count > 0 ? "" : "the driver counts no device";
}

int run(const Arguments& arguments) {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  Report report(measure_card(stream), arguments.json);
  bench_lora(report, stream, 0.95 * arguments.seconds);
  bench_host_rows(report, stream, 0.05 * arguments.seconds);
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  return report.all_correct() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // rows appear as they are measured, in a pipe too
  Arguments arguments;
  if (!parse(argc, argv, arguments)) {
    std::fprintf(stderr, "usage: servelab_cuda_bench [--json FILE] [--seconds S]\n");
    return 2;
  }
  if (const std::string reason = why_no_device(); !reason.empty()) {
    std::printf("skipped: no CUDA device: %s\n", reason.c_str());
    return 0;
  }
  try {
    return run(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "servelab_cuda_bench: %s\n", error.what());
    return 1;
  }
}
