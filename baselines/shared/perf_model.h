// Performance models (CaraServe 5) as files: what `servelab perf-model fit` writes and policies
// take by their parameter `model`. YAML, a map of kernels; a phase that was not measured is absent.
//
//   bgmv:
//     prefill: {alpha_ms: 0.021, beta_ms: 28.4, r2: 0.97, points: 25}
//     decode: {alpha_ms: 0.0036, beta_ms: 32.07, r2: 0.96, points: 25}
#ifndef SERVELAB_BASELINES_SHARED_PERF_MODEL_H_
#define SERVELAB_BASELINES_SHARED_PERF_MODEL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "baselines/shared/rank_cost.h"

namespace servelab {

inline constexpr double kLeastAlphaMs = 1e-12;  // a slope that is less says nothing of ranks

struct FittedRankLine {
  RankLine line;
  double r2 = 0;            // of the points that it was fitted to
  std::int64_t points = 0;  // as many
};

struct KernelPerf {
  std::string kernel;  // a name in kernels/lora_kind.h
  std::optional<FittedRankLine> prefill, decode;
};

// What the LoRA of a kernel's batches grows with; `kernel` is a name in kernels/lora_kind.h.
RankLoad load_of_kernel(const std::string& kernel);

// Throws SpecError with the place for a file that is absent, not of that form, names an unknown
// kernel, or has a slope that is not positive.
std::vector<KernelPerf> read_perf_model(const std::string& path);

// The one of a kernel. Throws SpecError when `path`, which `models` came from, has none.
const KernelPerf& perf_of(const std::vector<KernelPerf>& models, const std::string& kernel,
                          const std::string& path);

// What routing by `kernel` needs: the file's lines of both phases, or without `needs_prefill` of
// decoding at least. Throws SpecError as the above do, and when a line is missing.
RankModel rank_model(const std::string& path, const std::string& kernel, bool needs_prefill);

}  // namespace servelab

#endif  // SERVELAB_BASELINES_SHARED_PERF_MODEL_H_
