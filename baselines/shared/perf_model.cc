#include "baselines/shared/perf_model.h"

#include <algorithm>

#include "baselines/shared/kernel_param.h"
#include "engine/core/params.h"

namespace servelab {
namespace {

struct LineFields {
  FittedRankLine fitted;
  void fields(ParamFields& f) {
    f.add("alpha_ms", &fitted.line.alpha_ms, "by load").range(kLeastAlphaMs, 1e6).required();
    f.add("beta_ms", &fitted.line.beta_ms, "of no load").range(-1e6, 1e6).required();
    f.add("r2", &fitted.r2, "of the fit").range(-1e6, 1);
    f.add("points", &fitted.points, "of the fit").range(0, 1e9);
  }
};

FittedRankLine read_line(const ConfigNode& node, const std::string& where) {
  LineFields line;
  bind_params(node, where, &line);
  return line.fitted;
}

KernelPerf read_kernel(const std::string& kernel, const ConfigNode& phases) {
  if (!phases.is_map()) {
    throw SpecError(phases.mark, "'" + kernel + "' must be a map with prefill, decode or both");
  }
  KernelPerf perf;
  perf.kernel = kernel;
  for (const auto& [phase, line] : phases.members) {
    if (phase != "prefill" && phase != "decode") {
      throw SpecError(line.mark, "unknown phase '" + phase + "' of " + kernel + "; " +
                                     suggest(phase, {"prefill", "decode"}));
    }
    (phase == "prefill" ? perf.prefill : perf.decode) = read_line(line, kernel + "." + phase);
  }
  return perf;
}

}  // namespace

RankLoad load_of_kernel(const std::string& kernel) {
  return kernels::traits(kernel_from(kernel)).padded ? RankLoad::kPadded : RankLoad::kSum;
}

std::vector<KernelPerf> read_perf_model(const std::string& path) {
  const ConfigNode file = parse_yaml_file(path);
  if (!file.is_map() || file.members.empty()) {
    throw SpecError(path + ": a performance model is a map of kernels; fit one with `servelab " +
                    "perf-model fit`");
  }
  const std::vector<std::string> known = lora_kernel_names();
  std::vector<KernelPerf> models;
  for (const auto& [kernel, phases] : file.members) {
    if (std::find(known.begin(), known.end(), kernel) == known.end()) {
      throw SpecError(phases.mark, "unknown kernel '" + kernel + "'; " + suggest(kernel, known));
    }
    models.push_back(read_kernel(kernel, phases));
  }
  return models;
}

const KernelPerf& perf_of(const std::vector<KernelPerf>& models, const std::string& kernel,
                          const std::string& path) {
  std::vector<std::string> known;
  for (const KernelPerf& perf : models) {
    if (perf.kernel == kernel) return perf;
    known.push_back(perf.kernel);
  }
  throw SpecError(path + ": has no model of kernel '" + kernel + "'; " + suggest(kernel, known));
}

RankModel rank_model(const std::string& path, const std::string& kernel, bool needs_prefill) {
  const std::vector<KernelPerf> models = read_perf_model(path);
  const KernelPerf& perf = perf_of(models, kernel, path);
  const bool has_all = perf.decode.has_value() && (perf.prefill.has_value() || !needs_prefill);
  if (!has_all) {
    throw SpecError(path + ": " + kernel + " has no line of " +
                    (perf.decode.has_value() ? "prefill" : "decode") +
                    "; fit the model with rows of that phase too");
  }
  RankModel model;
  model.load = load_of_kernel(kernel);
  model.decode = perf.decode->line;
  if (perf.prefill) model.prefill = perf.prefill->line;
  return model;
}

}  // namespace servelab
