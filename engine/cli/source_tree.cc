#include "engine/cli/source_tree.h"

#include <filesystem>
#include <system_error>

namespace servelab {
namespace {

namespace fs = std::filesystem;

bool is_tree(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_regular_file(folder / "analysis/archive/cli.py", ignored);
}

}  // namespace

std::string find_source_tree() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  for (fs::path folder = program.parent_path(); !folder.empty(); folder = folder.parent_path()) {
    if (is_tree(folder)) return folder.string();
    if (folder == folder.root_path()) break;
  }
  const fs::path folder = fs::current_path(error);
  return !error && is_tree(folder) ? folder.string() : "";
}

}  // namespace servelab
