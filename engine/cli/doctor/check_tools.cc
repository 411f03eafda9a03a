// Programs that building, drawing and testing use. What a build's libraries are, .ci/setup knows.
#include "engine/cli/doctor/checks.h"

namespace servelab::doctor {
namespace {

struct Tool {
  const char* name;                // of the finding
  std::vector<const char*> any;    // one of these programs is enough
  bool needed;                     // by `make figures`
  const char* cost;                // of its absence
  const char* mend = ".ci/setup";  // which installs it, or says what to install
  const char* more = "";           // folders beside $PATH
};

const std::vector<Tool>& tools() {
  static const std::vector<Tool> all = {
      {"compiler", {"g++", "clang++", "c++"}, true, "nothing can be built"},
      {"cmake", {"cmake"}, true, "nothing can be built"},
      {"make", {"make", "gmake"}, true, "nothing can be built"},
      {"ccache", {"ccache"}, false, "another clone or build folder compiles everything again"},
      {"nvcc",
       {"nvcc"},
       false,
       "CUDA kernels are not built, and neither are their tests",
       "install the CUDA Toolkit, then make build",
       "/usr/local/cuda/bin"},
      {"clang",
       {"clang++"},
       false,
       "make fuzz, and so .ci/run; make sanitize builds twice as long",
       ".ci/setup --fuzz"},
      {"clang-format",
       {"clang-format"},
       false,
       "make check-format, and so .ci/run",
       ".ci/setup --format"},
      {"slurm",
       {"slurmctld"},
       false,
       "tests/executors are skipped: `run --executor slurm` is not tested",
       ".ci/setup --slurm",
       "/usr/sbin:/usr/local/sbin:/sbin"},
      {"browser",
       {"chromium", "chromium-browser", "google-chrome", "chrome"},
       false,
       "tests that look at the HTML report in a browser are skipped",
       ".ci/setup --browser"},
  };
  return all;
}

Finding check_tool(const Machine& machine, const Tool& tool) {
  for (const char* name : tool.any) {
    const std::string path = machine.find_program(name, tool.more);
    if (!path.empty()) return ok(tool.name, path);
  }
  const std::string found = fmt::format("no {}", joined(tool.any));
  return tool.needed ? problem(tool.name, found, tool.cost, tool.mend)
                     : note(tool.name, found, tool.cost, tool.mend);
}

}  // namespace

Findings check_tools(const Subject& subject) {
  Findings findings;
  for (const Tool& tool : tools()) findings.push_back(check_tool(subject.machine, tool));
  return findings;
}

}  // namespace servelab::doctor
