// The CUDA engine's steps on Llama-2-7B, random weights, against the card's own copy bandwidth and
// cuBLASLt peak, measured in the same run.
//
//   servelab_cuda_engine_bench [--json FILE]
//
// Exits 0, saying "skipped" and why, where there is no GPU; 1 when a step fails.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <string_view>
#include <thread>

#include "engine/backend/device/accelerator.h"
#include "kernels/bench/cuda_bench.h"
#include "tests/bench/steps.h"

namespace servelab {
namespace {

constexpr int kRepeats = 24;
constexpr int kWarmUp = 4;  // a shape's algorithms are chosen, its graph is recorded
constexpr int kContext = 512;
constexpr int kRank = 16;
constexpr int kAdapters = 32;

// asked: share of the bound (decode at batch 1, prefill), of all others nothing.
constexpr StepCase kCases[] = {
    {"decode, batch 1, context 512", 1, kContext, 1, 0, 0.80},
    {"decode, batch 8, context 512", 8, kContext, 1, 0, 0},
    {"decode, batch 32, context 512", 32, kContext, 1, 0, 0},
    {"decode, batch 32, context 512, 32 adapters of rank 16", 32, kContext, 1, kAdapters, 0},
    {"prefill, 2048 tokens", 1, 0, 2048, 0, 0.60},
    {"prefill, 4 x 512 tokens, 4 adapters of rank 16", 4, 0, 512, 4, 0},
};

ModelConfig llama_2_7b() {
  ModelConfig model;
  model.name = "llama-2-7b";
  model.layers = 32;
  model.hidden = 4096;
  model.heads = model.kv_heads = 32;
  model.head_dim = 128;
  model.ffn = 11008;
  model.vocab = 32000;
  model.max_context_tokens = 4096;
  model.source = "benchmark";
  return model;
}

StepLoad open(const Accelerator& cuda) {
  const ModelConfig model = llama_2_7b();
  DevicePlan plan;
  plan.limits.block_tokens = kStepBlockTokens;
  plan.limits.max_batch = kAdapters;
  for (const StepCase& c : kCases) {
    plan.limits.kv_blocks = std::max(plan.limits.kv_blocks, blocks_of(c));
    plan.limits.max_batch_tokens = std::max(plan.limits.max_batch_tokens, c.batch * c.tokens);
  }
  plan.targets = {LinearLayer::kQ, LinearLayer::kK, LinearLayer::kV, LinearLayer::kO};
  plan.adapters = kAdapters + 1;  // one that is loaded while the others serve
  plan.widest_rank = kRank;
  return {cuda.make(model, *random_weights(model, 1), plan), kAdapters, kRank};
}

double seconds_of(StepLoad* load, const StepCase& c) {
  using Clock = std::chrono::steady_clock;
  for (int i = 0; i < kWarmUp; ++i) load->run(c);
  std::vector<double> times;
  for (int i = 0; i < kRepeats; ++i) {
    const auto begin = Clock::now();
    load->run(c);
    times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return median(times);
}

// The same steps while a thread brings one adapter after the other.
double seconds_while_loading(StepLoad* load, const StepCase& c, int* loads) {
  Device& device = load->device();
  const Load next = {AdapterId{kAdapters}, kRank};
  const auto weights = random_adapter(device.model(), "loaded", kRank, {"q", "k", "v", "o"}, 99);
  device.hold(next, weights);
  std::atomic<bool> stop{false};
  std::exception_ptr failure;
  std::thread loader([&] {
    try {
      for (; !stop; ++*loads) {
        device.load(next, weights);
        device.wait(next.adapter);
        device.evict(next.adapter);
      }
    } catch (...) {
      failure = std::current_exception();
    }
  });
  const double time = seconds_of(load, c);
  stop = true;
  loader.join();
  if (failure) std::rethrow_exception(failure);
  return time;
}

int run(const std::string& json) {
  const std::unique_ptr<Accelerator> cuda = find_accelerator("cuda");
  try {
    cuda->devices();
  } catch (const SpecError& reason) {
    std::printf("skipped: %s\n", reason.what());
    return 0;
  }
  cudaStream_t stream =
      nullptr;  // launches are timed in a graph, which the default one cannot record
  kernels::cuda::check(cudaStreamCreate(&stream), "cudaStreamCreate");
  kernels::cuda::Report report(kernels::cuda::measure_card(stream), json);
  kernels::cuda::check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  StepLoad load = open(*cuda);
  std::map<const StepCase*, double> times;
  for (const StepCase& c : kCases) {
    times[&c] = seconds_of(&load, c);
    report.add({"step", c.name, times[&c], load.bytes(c), load.flops(c), 0, 0});
    if (c.asked > 0) {
      const double bound = std::max(load.bytes(c) / report.card().copy_bytes_per_s,
                                    load.flops(c) / report.card().dense_flops_per_s);
      report.add_ratio(std::string(c.name) + ": time over its bound", times[&c] / bound,
                       1 / c.asked);
    }
  }
  const StepCase& alone = kCases[2];
  const StepCase& adapted = kCases[3];
  report.add_ratio("decode, batch 32: 32 distinct adapters over none",
                   times[&adapted] / times[&alone], 1.15);
  int loads = 0;
  const double loading = seconds_while_loading(&load, adapted, &loads);
  report.add_ratio(
      "decode, batch 32: while adapters load (" + std::to_string(loads) + " loads) over not",
      loading / times[&adapted], 1.05);
  return 0;
}

}  // namespace
}  // namespace servelab

int main(int argc, char** argv) {
  std::string json;
  if (argc == 3 && std::string_view(argv[1]) == "--json") {
    json = argv[2];
  } else if (argc != 1) {
    std::fprintf(stderr, "usage: servelab_cuda_engine_bench [--json FILE]\n");
    return 2;
  }
  try {
    return servelab::run(json);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "servelab_cuda_engine_bench: %s\n", problem.what());
    return 1;
  }
}
