#include "engine/run/archive_cli.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "engine/core/check.h"

namespace servelab {
namespace {

namespace fs = std::filesystem;

// Isolated from the user's own Python packages; only the tree is added to the path.
constexpr const char* kMain =
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from analysis.archive.cli import main; sys.exit(main())";

bool is_tree(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_regular_file(folder / "analysis/archive/cli.py", ignored);
}

// The folder that holds analysis/: that of this program's build, or the current one.
fs::path find_tree() {
  std::error_code error;
  fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (; !error && !folder.empty(); folder = folder.parent_path()) {
    if (is_tree(folder)) return folder;
    if (folder == folder.root_path()) break;
  }
  folder = fs::current_path(error);
  if (!error && is_tree(folder)) return folder;
  throw SpecError(
      "servelab archive needs analysis/ of servelab's source tree, which is neither "
      "around this program nor here; run it in a clone");
}

}  // namespace

void declare_archive(CLI::App* app) {
  app->add_subcommand("archive",
                      "pack, verify, unpack, diff and list archives of results (archive --help)");
}

void archive_command(const std::vector<std::string>& arguments) {
  const fs::path tree = find_tree();
  const std::string python = tree / ".venv/bin/python";
  const std::string folder = tree;
  std::vector<const char*> argv = {python.c_str(), "-I", "-c", kMain, folder.c_str()};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  argv.push_back(nullptr);
  ::execv(python.c_str(), const_cast<char* const*>(argv.data()));
  throw SpecError(python + ": cannot be run: " + std::strerror(errno) +
                  "; make it with .ci/setup --only-python");
}

}  // namespace servelab
