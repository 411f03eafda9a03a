// What a spec's text may hold: checks of the raw file and of the texts that people read in figures.
#ifndef SERVELAB_SPEC_SPEC_TEXT_H_
#define SERVELAB_SPEC_SPEC_TEXT_H_

#include <string>

#include "engine/core/config_node.h"

namespace servelab {

// 'text' for a message: cut to 60 characters, control characters shown as '?'.
std::string in_quotes(const std::string& text);

// `what` is "'title'", say. Throws SpecError at the node unless it is text of at least one
// character, in UTF-8 and without control characters (line ends, tabs, escapes).
std::string shown_text(const ConfigNode& node, const std::string& what);

// Whether it has the form of a figure's name, such as dlora/fig10.
bool names_figure(const std::string& text);

// Throws SpecError at the first byte of a file's text that is not UTF-8.
void check_utf8(const std::string& text, const std::string& path);

// One text for every way to write a value: 1, 1.0 and 1e0 are equal, and so are lists of them.
std::string value_identity(const ConfigNode& node);

}  // namespace servelab

#endif  // SERVELAB_SPEC_SPEC_TEXT_H_
