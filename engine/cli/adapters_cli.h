// servelab adapters add|list|verify|remove: the registry of adapters on the command line.
#ifndef SERVELAB_CLI_ADAPTERS_CLI_H_
#define SERVELAB_CLI_ADAPTERS_CLI_H_

#include <string>

namespace CLI {
class App;
}

namespace servelab {

struct AdaptersArguments {
  std::string action;
  std::string name;
  std::string folder;
  std::string model;
  std::string database = "adapters.sqlite";
  std::string experiments = "experiments";
};

// Adds the command; it fills `arguments`, which outlive the parsing.
CLI::App* declare_adapters(CLI::App* app, AdaptersArguments* arguments);

// Returns the exit code: 0, or 1 when verify finds an adapter that cannot be served (one line on
// stderr for each). Throws SpecError for bad input.
int adapters_command(const AdaptersArguments& arguments);

}  // namespace servelab

#endif  // SERVELAB_CLI_ADAPTERS_CLI_H_
