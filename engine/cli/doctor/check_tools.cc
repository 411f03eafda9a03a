// Programs that building, drawing and testing use. What a build's libraries are, .ci/setup knows.
#include <cstdio>
#include <utility>

#include "engine/cli/doctor/checks.h"
#include "engine/cli/doctor/format.h"

namespace servelab::doctor {
namespace {

using std::chrono::milliseconds;

constexpr const char* kDaemonFolders = "/usr/sbin:/usr/local/sbin:/sbin";

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
      {"make", {"make", "gmake"}, true, "nothing can be built"},
      {"ninja", {"ninja"}, false, "builds go through make, which looks at every file each time"},
      {"ccache", {"ccache"}, false, "another clone or build folder compiles everything again"},
      {"git", {"git"}, false, "tests/readme_example.sh, and so .ci/run"},
      {"clang-format",
       {"clang-format"},
       false,
       "make check-format",
       "apt-get install clang-format"},
      {"clang",
       {"clang++"},
       false,
       "make fuzz, and so .ci/run; make sanitize builds twice as long",
       ".ci/setup --fuzz"},
      {"nvcc",
       {"nvcc"},
       false,
       "CUDA kernels are not built, and neither are their tests",
       "install the CUDA Toolkit",
       kCudaFolder},
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

Finding check_cmake(const Machine& machine) {
  const std::string path = machine.find_program("cmake");
  if (path.empty()) return problem("cmake", "no cmake", "nothing can be built", ".ci/setup");
  const std::string text = machine.run({machine.place(path), "--version"}, milliseconds(1000)).text;
  int major = 0, minor = 0;
  if (std::sscanf(text.c_str(), "cmake version %d.%d", &major, &minor) != 2) {
    return problem("cmake", path + " does not say its version", "nothing can be built",
                   path + " --version");
  }
  const std::string found = fmt::format("{}, version {}.{}", path, major, minor);
  if (std::pair(major, minor) >= std::pair(3, 22)) return ok("cmake", found);
  return problem("cmake", found, "nothing can be built: 3.22 is needed",
                 "python3 -m pip install --user 'cmake>=3.22'");
}

Finding check_slurm(const Machine& machine) {
  std::vector<std::string> missing;
  for (const char* name : {"slurmctld", "slurmd", "sbatch", "squeue", "munged"}) {
    if (machine.find_program(name, kDaemonFolders).empty()) missing.emplace_back(name);
  }
  constexpr const char* kCost = "tests/executors are skipped: `run --executor slurm` is not tested";
  if (!missing.empty()) {
    return note("slurm", fmt::format("no {}", joined(missing)), kCost, ".ci/setup --slurm");
  }
  if (!machine.is_root()) {
    return note("slurm", "its daemons, which a user other than root cannot start", kCost,
                "run the tests as root, in a container for one");
  }
  return ok("slurm", "its daemons and munge");
}

Finding check_browser(const Machine& machine) {
  for (const char* name : {"chromium", "chromium-browser", "google-chrome", "chrome"}) {
    const std::string path = machine.find_program(name);
    if (!path.empty()) return ok("browser", path);
  }
  return note("browser", "no chromium",
              "tests that look at the HTML report in a browser are skipped", ".ci/setup --browser");
}

}  // namespace

Findings check_tools(const Subject& subject) {
  Findings findings;
  for (const Tool& tool : tools()) findings.push_back(check_tool(subject.machine, tool));
  findings.insert(findings.begin() + 1, check_cmake(subject.machine));
  return findings;
}

Findings check_extras(const Subject& subject) {
  return {check_slurm(subject.machine), check_browser(subject.machine)};
}

}  // namespace servelab::doctor
