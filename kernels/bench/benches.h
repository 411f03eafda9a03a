// The benchmarks: each checks against the reference first, then prints a table.
#ifndef SERVELAB_KERNELS_BENCH_BENCHES_H_
#define SERVELAB_KERNELS_BENCH_BENCHES_H_

#include "kernels/bench/machine.h"

namespace servelab::kernels {

// Every linear layer of a small Llama, and of a layer of a large one, each with weights of its own
// so that they come from memory, by each choice of kernels.
void bench_gemm(Team& team, DType type);

// LoRA, attention and the element-wise operations, as shares of the linear layers of their step.
void bench_ops(Team& team, const Machine& machine);

// One core's share of LoRA on the host, with the line that `host_lora` of a hardware profile takes.
void bench_host_lora();

}  // namespace servelab::kernels

#endif  // SERVELAB_KERNELS_BENCH_BENCHES_H_
