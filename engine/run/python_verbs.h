// servelab archive pack|verify|unpack|diff|list: hands over to analysis/archive, in Python.
//
// Archives live there because verifying one draws its figures, which is Python in any case; and
// because a clone needs no compiler then: with .venv alone, `python -m analysis.archive` does all
// that this command does.
#ifndef SERVELAB_RUN_ARCHIVE_CLI_H_
#define SERVELAB_RUN_ARCHIVE_CLI_H_

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace servelab {

// Adds the command for help and for the list of known ones. What follows it is not CLI11's, which
// would take `archive list` for `list`.
void declare_archive(CLI::App* app);

// Replaces this process with the Python of the tree that this program was built in, or of the
// current folder. Throws SpecError when there is none.
[[noreturn]] void archive_command(const std::vector<std::string>& arguments);

}  // namespace servelab

#endif  // SERVELAB_RUN_ARCHIVE_CLI_H_
