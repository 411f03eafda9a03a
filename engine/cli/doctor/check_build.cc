#include <filesystem>

#include "engine/cli/doctor/checks.h"
#include "engine/cli/doctor/format.h"
#include "engine/record/build_id.h"

namespace servelab::doctor {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRebuild = "make build";

Finding check_type(const BuildFacts& facts) {
  const std::string found =
      fmt::format("{} ({}){}", facts.type, facts.flags.empty() ? "no flags" : facts.flags,
                  facts.sanitizers.empty() ? "" : ", " + facts.sanitizers + " sanitizer");
  if (facts.optimised && facts.sanitizers.empty()) return ok("type", found);
  return note("type", found,
              "results of the twin are the same; whatever is measured in wall-clock time says "
              "nothing about a release build",
              "make build CMAKE_FLAGS=-DCMAKE_BUILD_TYPE=Release");
}

Finding check_instruction_sets(const BuildFacts& facts) {
  if (facts.x86) {
    return ok("kernels", "reference loops, AVX2, AVX-512 with BF16");
  }
  return note("kernels", "reference loops only: not an x86-64 build",
              "the CPU engine is correct, and more than ten times slower");
}

Finding check_cuda(const Subject& subject) {
  const BuildFacts& facts = subject.build;
  if (!facts.cuda_targets.empty()) {
    return ok("cuda", fmt::format("compiled in, for sm_{}", joined(facts.cuda_targets, ", sm_")));
  }
  const bool has_nvcc = !subject.machine.find_program("nvcc", kCudaFolder).empty();
  return note("cuda", "not compiled in",
              "`backend: cuda` and its figures; all others are as with it",
              has_nvcc ? "make build" : "install the CUDA Toolkit (nvcc), then make build");
}

// Whether the program depends on a file of the tree.
bool is_source(const fs::path& file) {
  const std::string name = file.generic_string();
  if (name.find("kernels/bench/") != std::string::npos) return false;
  const std::string kind = file.extension();
  return kind == ".cc" || kind == ".h" || kind == ".cu" || kind == ".cuh";
}

Finding check_source(const Subject& subject) {
  std::error_code error;
  const auto built = fs::last_write_time(subject.program, error);
  if (error || subject.tree.empty()) {
    return note("source", "servelab's source tree is neither around this program nor here",
                "the verbs written in Python (archive and others) and `make figures`",
                "run it in a clone");
  }
  int newer = 0;
  fs::path newest;
  fs::file_time_type newest_time = built;
  for (const char* top : {"engine", "kernels", "baselines"}) {
    for (auto it = fs::recursive_directory_iterator(fs::path(subject.tree) / top, error);
         !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
      if (!is_source(it->path())) continue;
      std::error_code ignored;
      const auto written = fs::last_write_time(it->path(), ignored);
      if (ignored || written <= built) continue;
      ++newer;
      if (written > newest_time) {
        newest = it->path();
        newest_time = written;
      }
    }
  }
  if (newer == 0) return ok("source", fmt::format("not newer than build {}", build_id()));
  return note("source",
              fmt::format("{} file{} newer than this program, build {}: {}{}", newer,
                          newer == 1 ? " is" : "s are", build_id(),
                          newest.lexically_relative(subject.tree).generic_string(),
                          newer == 1 ? "" : " and others"),
              "results are those of the older code, and say so by its build id", kRebuild);
}

}  // namespace

Findings check_build(const Subject& subject) {
  const BuildFacts& facts = subject.build;
  return {ok("compiler", facts.compiler), check_type(facts), check_instruction_sets(facts),
          check_cuda(subject), check_source(subject)};
}

}  // namespace servelab::doctor
