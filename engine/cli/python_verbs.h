// The verbs of servelab that are written in Python, below analysis/: what reads results, draws them
// or sends them on.
//
// They live there because they draw, or stand on libraries that C++ lacks; and because a clone
// needs no compiler then: with .venv alone, `python -m analysis.archive` does all that `servelab
// archive` does.
#ifndef SERVELAB_CLI_PYTHON_VERBS_H_
#define SERVELAB_CLI_PYTHON_VERBS_H_

#include <string>

namespace CLI {
class App;
}

namespace servelab {

// Adds the verbs for help and for the list of known ones. What follows them is not CLI11's, which
// would take `archive list` for `list`.
void declare_python_verbs(CLI::App* app);

bool is_python_verb(const std::string& name);

// Replaces this process with the verb argv[1], in the Python of the tree that this program was
// built in, or of the current folder. The verb finds this program in $SERVELAB. Throws SpecError
// when there is no such Python.
[[noreturn]] void python_verb(int argc, char** argv);

}  // namespace servelab

#endif  // SERVELAB_CLI_PYTHON_VERBS_H_
