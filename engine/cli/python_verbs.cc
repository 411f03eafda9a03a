#include "engine/cli/python_verbs.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "engine/cli/source_tree.h"
#include "engine/core/check.h"

namespace servelab {
namespace {

namespace fs = std::filesystem;

// Each is the module analysis/<name>, whose __main__ runs cli.main().
struct Verb {
  const char* name;
  const char* help;
};
constexpr Verb kVerbs[] = {
    {"archive", "pack, verify, unpack, diff and list archives of results (archive --help)"},
    {"compare", "techniques on the same requests: what differs, and beyond noise (compare --help)"},
    {"export",
     "runs as Benchmark Report, Mooncake trace, OpenMetrics or measured rows (export --help)"},
    {"summary", "metrics as vLLM, GuideLLM, AIPerf or MLPerf define them (summary --help)"},
    {"train", "models that place adapters, from simulated GPUs (train --help)"},
};

// Isolated from the user's own Python packages; only the tree is added to the path.
constexpr const char* kMain =
    "import sys; sys.path.insert(0, sys.argv.pop(1)); import importlib; "
    "sys.exit(importlib.import_module(f'analysis.{sys.argv.pop(1)}.cli').main())";

}  // namespace

void declare_python_verbs(CLI::App* app) {
  for (const Verb& verb : kVerbs) app->add_subcommand(verb.name, verb.help);
}

bool is_python_verb(const std::string& name) {
  return std::any_of(std::begin(kVerbs), std::end(kVerbs),
                     [&](const Verb& verb) { return name == verb.name; });
}

void python_verb(int argc, char** argv) {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const std::string folder = find_source_tree();
  if (folder.empty()) {
    throw SpecError(std::string("servelab ") + argv[1] +
                    " needs analysis/ of servelab's source tree, which is neither around this "
                    "program nor here; run it in a clone");
  }
  const std::string python = folder + "/.venv/bin/python";
  if (!error) ::setenv("SERVELAB", program.c_str(), 1);
  std::vector<char*> arguments = {const_cast<char*>(python.c_str()), const_cast<char*>("-I"),
                                  const_cast<char*>("-c"), const_cast<char*>(kMain),
                                  const_cast<char*>(folder.c_str())};
  arguments.insert(arguments.end(), argv + 1, argv + argc);
  arguments.push_back(nullptr);
  ::execv(python.c_str(), arguments.data());
  throw SpecError(python + ": cannot be run: " + std::strerror(errno) +
                  "; make it with .ci/setup --only-python");
}

}  // namespace servelab
