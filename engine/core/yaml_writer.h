// A settings tree as YAML, for people and to be read again.
#ifndef SERVELAB_CORE_YAML_WRITER_H_
#define SERVELAB_CORE_YAML_WRITER_H_

#include <string>

#include "engine/core/config_node.h"

namespace servelab {

// A text that parse_yaml() makes an equal tree of: strings that look like numbers stay strings.
// Lists and maps of plain values are on one line where it fits in 100 columns; comments and places
// are lost. Ends with a line end.
std::string write_yaml(const ConfigNode& node);

}  // namespace servelab

#endif  // SERVELAB_CORE_YAML_WRITER_H_
