#include "engine/cli/adapters_cli.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "engine/core/check.h"
#include "engine/model/adapter_registry.h"
#include "engine/model/hf_model.h"
#include "engine/spec/library.h"

namespace servelab {
namespace {

// The arguments that an action takes, besides --db.
struct Action {
  const char* name;
  bool takes_name;
  bool takes_folder;
};
constexpr Action kActions[] = {
    {"add", true, true}, {"list", false, false}, {"verify", true, false}, {"remove", true, false}};

const Action& action_of(const AdaptersArguments& arguments) {
  std::vector<std::string> names;
  for (const Action& action : kActions) {
    if (arguments.action == action.name) return action;
    names.emplace_back(action.name);
  }
  throw SpecError("unknown action '" + arguments.action + "' of servelab adapters; " +
                  suggest(arguments.action, names));
}

void check_arguments(const AdaptersArguments& arguments) {
  const Action& action = action_of(arguments);
  const std::string command = std::string("servelab adapters ") + action.name;
  if (!action.takes_name && !arguments.name.empty()) {
    throw SpecError("unexpected '" + arguments.name + "' after " + command);
  }
  if (!action.takes_folder && !arguments.folder.empty()) {
    throw SpecError("unexpected '" + arguments.folder + "' after " + command);
  }
  if (!action.takes_folder && !arguments.model.empty()) {
    throw SpecError(command + " takes no --model");
  }
  if (action.takes_folder && (arguments.folder.empty() || arguments.model.empty())) {
    throw SpecError(command + " needs NAME FOLDER --model MODEL");
  }
  if (arguments.action == "remove" && arguments.name.empty()) {
    throw SpecError(command + " needs NAME");
  }
}

// A Hugging Face folder, a model file, or a name in base/model/.
ModelConfig find_model(const AdaptersArguments& arguments) {
  std::error_code ignored;
  if (std::filesystem::is_directory(arguments.model, ignored)) {
    return load_hf_config(arguments.model);
  }
  const Library library(arguments.experiments);
  return load_model_config(
      library.find("model", arguments.model, SourceMark{"--model " + arguments.model, 0, 0}));
}

std::string line_of(const RegisteredAdapter& adapter) {
  std::string targets;
  for (const std::string& target : adapter.targets) {
    targets += (targets.empty() ? "" : ",") + target;
  }
  return fmt::format("{:<20} rank {:<4} {:<22} {:>12} bytes  sha256:{}  {}  {}\n", adapter.name,
                     adapter.rank, targets, adapter.bytes, adapter.sha256.substr(0, 16),
                     adapter.model, adapter.path);
}

int verify(const AdapterRegistry& registry, const std::string& name) {
  const std::vector<RegisteredAdapter> adapters =
      name.empty() ? registry.list() : std::vector<RegisteredAdapter>{registry.find(name)};
  std::size_t bad = 0;
  for (const RegisteredAdapter& adapter : adapters) {
    const auto problem = AdapterRegistry::problem(adapter);
    if (!problem) continue;
    ++bad;
    std::string text = *problem;
    std::replace(text.begin(), text.end(), '\n', ' ');
    fmt::print(stderr, "servelab: error: adapter '{}': {}\n", adapter.name, text);
  }
  fmt::print("{} adapters: {} as registered, {} not\n", adapters.size(), adapters.size() - bad,
             bad);
  return bad == 0 ? 0 : 1;
}

}  // namespace

CLI::App* declare_adapters(CLI::App* app, AdaptersArguments* arguments) {
  CLI::App* command =
      app->add_subcommand("adapters",
                          "register adapters: add NAME FOLDER --model MODEL, list, verify [NAME], "
                          "remove NAME");
  command->add_option("ACTION", arguments->action, "add, list, verify or remove")->required();
  command->add_option("NAME", arguments->name, "the adapter's name in the registry");
  command->add_option("FOLDER", arguments->folder, "add: its PEFT folder");
  command->add_option(
      "--model", arguments->model,
      "add: the base model: a name in base/model/, a file, or a Hugging Face folder");
  command->add_option("--db", arguments->database, "the registry's file")->capture_default_str();
  return command;
}

int adapters_command(const AdaptersArguments& arguments) {
  check_arguments(arguments);
  if (arguments.action == "add") {
    const ModelConfig model = find_model(arguments);
    AdapterRegistry registry(arguments.database, AdapterRegistry::Open::kCreate);
    fmt::print("{}", line_of(registry.add(arguments.name, arguments.folder, model)));
    return 0;
  }
  AdapterRegistry registry(arguments.database);
  if (arguments.action == "remove") {
    registry.remove(arguments.name);
  } else if (arguments.action == "verify") {
    return verify(registry, arguments.name);
  } else {
    for (const RegisteredAdapter& adapter : registry.list()) fmt::print("{}", line_of(adapter));
  }
  return 0;
}

}  // namespace servelab
