#include <filesystem>
#include <fstream>

#include "engine/cli/doctor/checks.h"
#include "engine/core/digest.h"

namespace servelab::doctor {
namespace {

using std::chrono::milliseconds;

constexpr const char* kMend = ".ci/setup --only-python";
constexpr const char* kWithout =
    "no figure is drawn, and the verbs written in Python (archive and others) do not run";

// Prints what differs from the pins (one for some Pythons only may be absent); the last line says
// that it came to its end. Extensions that do not load (another Python, another C library) show in
// the imports.
constexpr const char* kLook = R"(
import importlib, importlib.metadata, sys
for line in open(sys.argv[1]):
    requirement, only_where, _ = line.split('#')[0].partition(';')
    name, pinned, version = requirement.strip().partition('==')
    if not pinned: continue
    try: there = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        if only_where: continue
        there = 'missing'
    if there != version: print(name, there, 'for', version)
for name in sys.argv[2:]:
    try: importlib.import_module(name)
    except Exception as error: print(name, 'does not import:', str(error).split('\n')[0])
print('done', sys.version.split()[0])
)";

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string sum_of(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) ? sha256_file_hex(path) : "none";
}

}  // namespace

Findings check_python(const Subject& subject) {
  const Machine& machine = subject.machine;
  const std::string python = subject.tree + "/.venv/bin/python";
  const std::string requirements = subject.tree + "/analysis/requirements.txt";
  if (subject.tree.empty()) return {ok("venv", "not looked at: there is no source tree")};
  std::error_code ignored;
  if (!std::filesystem::exists(python, ignored)) {
    const bool has_python = !machine.find_program("python3").empty();
    return {problem("venv", has_python ? "not made yet" : "not made, and there is no python3",
                    kWithout, has_python ? kMend : "install python3 and python3-venv")};
  }
  Findings findings;
  const bool is_current =
      first_line(subject.tree + "/.venv/.servelab-requirements") == sum_of(requirements);
  findings.push_back(is_current
                         ? ok("venv", "of this tree's analysis/requirements.txt")
                         : problem("venv", "of other requirements than analysis/requirements.txt",
                                   "packages are missing, or figures look different", kMend));
  std::vector<std::string> command = {python,       "-I",    "-c",   kLook,
                                      requirements, "numpy", "h5py", "matplotlib"};
  if (subject.full) command.insert(command.end(), {"scipy.stats", "matplotlib.pyplot"});
  const Output output = machine.run(command, milliseconds(subject.full ? 60000 : 3000));
  std::vector<std::string> lines;
  std::string rest = output.text;
  for (std::size_t end; (end = rest.find('\n')) != std::string::npos; rest.erase(0, end + 1)) {
    lines.push_back(rest.substr(0, end));
  }
  const bool is_whole = !lines.empty() && lines.back().rfind("done ", 0) == 0;
  if (output.timed_out) {
    findings.push_back(note("packages", "Python gives no answer in 3 s",
                            "nothing, where the machine is only busy",
                            "servelab doctor --full waits longer"));
  } else if (!is_whole) {
    findings.push_back(problem("packages", "its Python does not run", kWithout, kMend));
  } else if (lines.size() > 1) {
    const std::string others =
        lines.size() > 2 ? ", and " + std::to_string(lines.size() - 2) + " more" : "";
    findings.push_back(problem("packages", lines.front() + others,
                               "figures may look different, or fail", "rm -r .venv && .ci/setup"));
  } else {
    findings.push_back(ok("packages", "Python " + lines.back().substr(5) + ", as pinned"));
  }
  return findings;
}

}  // namespace servelab::doctor
