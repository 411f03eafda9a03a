// The source tree that this program can use: analysis/, experiments/ and .venv lie in it.
#ifndef SERVELAB_CLI_SOURCE_TREE_H_
#define SERVELAB_CLI_SOURCE_TREE_H_

#include <string>

namespace servelab {

// The folder that holds analysis/, around this program's build or the current one; else empty.
std::string find_source_tree();

}  // namespace servelab

#endif  // SERVELAB_CLI_SOURCE_TREE_H_
