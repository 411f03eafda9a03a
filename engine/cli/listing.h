// What `servelab list`, `show` and `spec` print: made from the registries and from fields(), so
// that it cannot disagree with what is accepted.
#ifndef SERVELAB_CLI_LISTING_H_
#define SERVELAB_CLI_LISTING_H_

#include <string>

#include "engine/spec/library.h"

namespace servelab {

// Techniques with their summaries, cluster policies, engines, models, hardware, workloads, specs.
std::string list_text(const Library& library);

// One technique: summary, paper, capabilities, parameters. Or an engine: what it sets and costs;
// "engines": a table of all. Throws SpecError for an unknown name.
std::string show_text(const std::string& name, const Library& library);

// Every key of a spec with its type, limits, default and meaning.
std::string spec_keys_text();

// The same as a JSON Schema, for editors.
std::string spec_schema_json();

}  // namespace servelab

#endif  // SERVELAB_CLI_LISTING_H_
