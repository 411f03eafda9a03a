// Validates the kernels, then times them on the shapes of a small Llama beside this machine's own
// read bandwidth and arithmetic peak. Usage: servelab_kernel_bench [threads [part]]; part: bf16,
// f32, the LoRA, attention and element-wise operations (ops), or a core's LoRA for CaraServe
// (host-lora); all of them when left out.
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "kernels/bench/benches.h"

int main(int argc, char** argv) {
  using namespace servelab::kernels;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // rows appear as they are measured, in a pipe too
  const int threads =
      argc > 1 ? std::atoi(argv[1]) : static_cast<int>(std::thread::hardware_concurrency());
  Team team(threads < 1 ? 1 : threads);
  const Machine machine = measure(team);
  std::printf("%d threads, %s: reads %.1f GB/s, %.0f GFLOP/s by bf16 dot products, %.0f by f32\n",
              team.size(), ops(best_isa()).name, machine.bytes_per_s * 1e-9,
              machine.dot_flops_per_s * 1e-9, machine.fma_flops_per_s * 1e-9);
  const std::string_view part = argc > 2 ? argv[2] : "";
  const auto wanted = [part](std::string_view name) { return part.empty() || part == name; };
  if (wanted("bf16")) bench_gemm(team, DType::kBf16);
  if (wanted("f32")) bench_gemm(team, DType::kF32);
  if (wanted("ops")) bench_ops(team, machine);
  if (wanted("host-lora")) bench_host_lora();
  return 0;
}
