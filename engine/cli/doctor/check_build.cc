#include <filesystem>

#include "engine/cli/doctor/checks.h"
#include "engine/record/build_id.h"

namespace servelab::doctor {
namespace {

namespace fs = std::filesystem;

Finding check_type(const BuildFacts& facts) {
  const std::string found =
      fmt::format("{} ({}){}", facts.type, facts.flags.empty() ? "no flags" : facts.flags,
                  facts.sanitized ? ", with sanitizers" : "");
  if (facts.optimised && !facts.sanitized) return ok("type", found);
  return note("type", found,
              "results of the twin are the same; whatever is measured in wall-clock time says "
              "nothing about a release build",
              "make build CMAKE_FLAGS=-DCMAKE_BUILD_TYPE=Release");
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
  std::vector<std::string> newer;
  for (const char* top : {"engine", "kernels", "baselines"}) {
    for (auto it = fs::recursive_directory_iterator(fs::path(subject.tree) / top, error);
         !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
      std::error_code ignored;
      if (is_source(it->path()) && fs::last_write_time(it->path(), ignored) > built) {
        newer.push_back(it->path().lexically_relative(subject.tree).generic_string());
      }
    }
  }
  if (newer.empty()) return ok("source", fmt::format("not newer than build {}", build_id()));
  return note("source",
              fmt::format("newer than this program, build {}: {}", build_id(), listed(newer, 2)),
              "results are those of the older code, and say so by its build id", "make build");
}

}  // namespace

Findings check_build(const Subject& subject) {
  return {check_type(subject.build), check_source(subject)};
}

}  // namespace servelab::doctor
