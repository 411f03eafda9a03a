// servelab perf-model fit|predict: CaraServe's performance models (5, Fig. 9) from measured
// batches. A batch's latency is alpha_ms x load + beta_ms; the load is requests x the largest rank
// where the kernel pads (bgmv), else the sum of ranks (mbgmv).
#ifndef SERVELAB_CLI_PERF_MODEL_H_
#define SERVELAB_CLI_PERF_MODEL_H_

#include <string>
#include <string_view>
#include <vector>

#include "baselines/shared/perf_model.h"

namespace CLI {
class App;
}

namespace servelab {

struct PerfModelArguments {
  std::string action;
  std::vector<std::string> sources;
  std::string kernel;  // empty: all that the sources have
  std::string ranks;
  std::string out;  // empty: stdout
};

// One batch under one kernel.
struct PerfSample {
  std::string kernel;
  std::string phase;  // prefill or decode
  Ranks ranks;
  double latency_ms = 0;
};

// "8 8 64", "8,8,64" or "2x8 64": the ranks of a batch's requests. SpecError, at `where`.
Ranks parse_ranks(std::string_view text, const std::string& where);

// What a source holds: a CSV file with the columns kernel, phase, ranks, latency_ms in any order;
// or the results of a spec (its folder, or its collected.h5), each of whose VALID points is one
// batch: the median gap between its tokens is a decode step of all its requests, and a prefill is
// that of the most that began in one step. Throws SpecError.
std::vector<PerfSample> read_perf_samples(const std::string& source);

// Least squares by kernel and phase; of `kernel` alone unless empty. Throws SpecError, which starts
// with `source`, when a line has under three points or one load, or a slope that is not positive.
std::vector<KernelPerf> fit_perf_model(const std::vector<PerfSample>& samples,
                                       const std::string& kernel, const std::string& source);

// The text that read_perf_model() reads back.
std::string perf_model_yaml(const std::vector<KernelPerf>& models, const std::string& source);

// Adds the command; it fills `arguments`, which outlive the parsing.
CLI::App* declare_perf_model(CLI::App* app, PerfModelArguments* arguments);

// Prints the model or the predictions, or saves the model whole. Throws SpecError.
void perf_model_command(const PerfModelArguments& arguments);

}  // namespace servelab

#endif  // SERVELAB_CLI_PERF_MODEL_H_
