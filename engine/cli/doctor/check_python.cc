#include <filesystem>
#include <fstream>

#include "engine/cli/doctor/checks.h"
#include "engine/core/digest.h"

namespace servelab::doctor {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr const char* kMend = ".ci/setup --only-python";
constexpr const char* kWithout =
    "no figure is drawn, and the verbs written in Python (archive and others) do not run";
// Extensions that do not load (another Python, another C library) show in the imports.
constexpr const char* kLook = "import numpy, h5py, matplotlib";

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

Findings check_python(const Subject& subject) {
  const std::string python = subject.tree + "/.venv/bin/python";
  const std::string requirements = subject.tree + "/analysis/requirements.txt";
  std::error_code ignored;
  if (subject.tree.empty()) return {};  // which check_build says
  if (!fs::exists(python, ignored)) return {problem("venv", "not made yet", kWithout, kMend)};
  if (!fs::is_regular_file(requirements, ignored) ||
      first_line(subject.tree + "/.venv/.servelab-requirements") != sha256_file_hex(requirements)) {
    return {problem("venv", "of other requirements than analysis/requirements.txt",
                    "packages are missing, or figures look different", kMend)};
  }
  const milliseconds limit(subject.full ? 60000 : 3000);
  const Output output = subject.machine.run({python, "-I", "-c", kLook}, limit);
  if (output.timed_out) {
    return {note("venv", fmt::format("its Python gives no answer in {} s", limit.count() / 1000),
                 "nothing, where the machine is only busy", "servelab doctor --full waits longer")};
  }
  if (output.code != 0) {
    return {problem("venv", "its Python does not run, or not with its packages", kWithout,
                    "rm -r .venv && .ci/setup --only-python")};
  }
  return {ok("venv", "of this tree's analysis/requirements.txt")};
}

}  // namespace servelab::doctor
