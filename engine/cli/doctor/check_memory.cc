#include <algorithm>
#include <cstdio>
#include <sstream>

#include "engine/cli/doctor/cgroup.h"
#include "engine/cli/doctor/checks.h"
#include "engine/cli/doctor/format.h"
#include "engine/core/check.h"
#include "engine/model/model_config.h"
#include "engine/spec/library.h"

namespace servelab::doctor {
namespace {

// A run of a million requests to 40,000 adapters on 60 replicas (tests/bench/README.md).
constexpr Bytes kMillionRequests = 430 * kMiB;
// Of the CPU engine, beside weights and KV cache: the program, activations, scratch space.
constexpr Bytes kEngineItself = 128 * kMiB;
constexpr Bytes kTokens = 4096;

// "MemAvailable:   12345 kB" of /proc/meminfo.
Bytes meminfo(const Machine& machine, const std::string& key) {
  std::istringstream lines(machine.text("/proc/meminfo"));
  for (std::string line; std::getline(lines, line);) {
    long kib = 0;
    if (line.rfind(key + ":", 0) == 0 &&
        std::sscanf(line.c_str() + key.size() + 1, "%ld", &kib) == 1) {
      return kib * kKiB;
    }
  }
  return 0;
}

// Of a small use of a model: its weights, and KV cache for one request of a usual length.
Bytes small_engine(const ModelConfig& model) {
  return model.weight_bytes() + model.kv_bytes_per_token() * kTokens + kEngineItself;
}

Finding check_models(const Subject& subject, Bytes usable) {
  std::vector<std::pair<Bytes, std::string>> models;
  const Library library(subject.experiments);
  for (const std::string& name : library.names("model")) {
    try {
      const ModelConfig model = load_model_config(library.find("model", name, SourceMark{}));
      models.emplace_back(small_engine(model), name);
    } catch (const SpecError& bad) {
      return problem("models", bad.what(), "every spec that names it", "mend the file");
    }
  }
  std::sort(models.begin(), models.end());
  std::vector<std::string> fitting, others;
  for (const auto& [bytes, name] : models) (bytes <= usable ? fitting : others).push_back(name);
  const std::string found =
      fitting.empty() ? "none fits the CPU engine" : "the CPU engine holds " + listed(fitting, 8);
  if (others.empty()) return ok("models", found);
  return note("models", found + "; not " + listed(others, 8),
              "`backend: cpu` with those; the twin needs no weights");
}

}  // namespace

Findings check_memory(const Subject& subject) {
  const Machine& machine = subject.machine;
  const Bytes total = meminfo(machine, "MemTotal");
  if (total == 0) return {ok("size", "not shown here")};
  const std::optional<Bytes> limit = cgroup_limits(machine).memory;
  const Bytes available = std::min(meminfo(machine, "MemAvailable"), limit.value_or(total));
  std::string found = gib(total) + ", " + gib(available) + " of it available";
  if (limit && *limit < total) found += "; the control group's limit is " + gib(*limit);
  Findings findings;
  if (available < kMillionRequests) {
    findings.push_back(note("size", found,
                            "runs of a million requests do not fit, nor may several points at once",
                            "end other programs, or servelab run --jobs 1"));
  } else {
    findings.push_back(ok("size", found));
  }
  findings.push_back(check_models(subject, available));
  return findings;
}

}  // namespace servelab::doctor
