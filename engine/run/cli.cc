#include "engine/run/cli.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/check.h"
#include "engine/record/context.h"
#include "engine/run/adapters_cli.h"
#include "engine/run/calibrate.h"
#include "engine/run/engine_cli.h"
#include "engine/run/generate.h"
#include "engine/run/library.h"
#include "engine/run/listing.h"
#include "engine/run/replay.h"
#include "engine/run/runner.h"
#include "engine/run/spec.h"
#include "engine/run/spec_check.h"
#include "engine/run/spec_text.h"
#include "engine/run/validate.h"

namespace servelab {
namespace {

constexpr int kOk = 0;
constexpr int kFailed = 1;
constexpr int kBadInput = 2;

// Set by the handler below, the one piece of state that a signal can reach.
std::atomic<int> stop_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void on_stop_signal(int signal_number) {
  if (stop_signal.exchange(signal_number) != 0) ::_exit(128 + signal_number);
  constexpr char kText[] =
      "\nservelab: stopping when the points in progress end; once more to stop now\n";
  if (::write(STDERR_FILENO, kText, sizeof kText - 1) < 0) return;
}

void install_signals() {
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  ::signal(SIGXFSZ, SIG_IGN);  // a file-size limit becomes an error of write()
}

struct Arguments {
  std::vector<std::string> specs;
  std::string technique;
  std::string experiments = "experiments";
  std::string data;
  RunOptions run;
  GenerateOptions generate;
  AdaptersArguments adapters;
  CalibrateOptions calibrate;
  ValidateOptions validate;
  bool schema = false;
};

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

int error(const std::string& message, int code) {
  fmt::print(stderr, "servelab: error: {}\n", one_line(message));
  return code;
}

std::string data_dir(const std::string& given) {
  std::string folder = given;
  if (folder.empty()) {
    const char* environment = std::getenv("SERVELAB_DATA");
    if (environment == nullptr || *environment == '\0') return "";
    folder = environment;
  }
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw SpecError(folder + ": the data folder does not exist; mend " +
                    (given.empty() ? "SERVELAB_DATA" : "--data") +
                    ", or leave it out to use the embedded workloads");
  }
  return folder;
}

std::vector<Spec> load_specs(const Arguments& arguments) {
  const Library library(arguments.experiments);
  std::vector<Spec> specs;
  for (const std::string& name : arguments.specs) {
    specs.push_back(load_spec(library.find_spec(name), arguments.experiments));
    for (std::size_t i = 0; i + 1 < specs.size(); ++i) {
      if (specs[i].id != specs.back().id) continue;
      if (specs[i].path != specs.back().path) {
        throw SpecError(specs.back().path + ": has the same id '" + specs.back().id + "' as " +
                        specs[i].path + "; run them apart, with different --out");
      }
      specs.pop_back();
      break;
    }
  }
  return specs;
}

void print_report(const Spec& spec, const RunReport& report, std::size_t total) {
  const std::size_t missing = total - report.computed - report.cached - report.failed;
  fmt::print("{}: {} points: {} run, {} cached", spec.id, total, report.computed, report.cached);
  if (report.failed > 0) fmt::print(", {} FAILED", report.failed);
  if (missing > 0) fmt::print(", {} not run", missing);
  fmt::print("; {} VALID, {} INVALID; {:.1f} s; {}\n", report.valid, report.invalid, report.wall_s,
             report.collected ? report.folder + "/collected.h5"
                              : report.folder + " (collected.h5 not written: points are missing)");
  std::fflush(stdout);
}

int run_command(Arguments& arguments) {
  if (arguments.run.out.empty()) throw SpecError("--out needs a folder, such as results");
  arguments.run.data_dir = data_dir(arguments.data);
  arguments.run.stop = &stop_signal;
  const std::vector<Spec> specs = load_specs(arguments);
  for (const Spec& spec : specs) check_spec(spec, arguments.run.data_dir, false);
  int code = kOk;
  for (const Spec& spec : specs) {
    RunReport report;
    try {
      report = run_spec(spec, arguments.run);
    } catch (const SpecError& problem) {
      code = error(problem.what(), kFailed);
      continue;
    }
    if (!arguments.run.quiet) print_report(spec, report, report.points);
    if (report.failed > 0) code = std::max(code, report.bad_input ? kBadInput : kFailed);
    if (report.collected && report.valid == 0) {
      code = std::max(code, kFailed);
      error(spec.id + ": no point is VALID; the first one: " + report.first_reasons, kFailed);
    }
    if (report.interrupted) {
      return error("interrupted: finished points are kept; run the same command to go on",
                   128 + stop_signal.load());
    }
  }
  return code;
}

int validate_command(Arguments& arguments) {
  arguments.run.data_dir = data_dir(arguments.data);
  arguments.run.stop = &stop_signal;
  arguments.validate.run = arguments.run;
  int code = kOk;
  for (const Spec& spec : load_specs(arguments)) {
    check_spec(spec, arguments.run.data_dir, false);
    if (validate(spec, arguments.validate)) continue;
    code = error(spec.id + ": the twin is beyond a limit in a load regime (unsupported, above)",
                 kFailed);
  }
  return code;
}

int replay_command(const Arguments& arguments) {
  int code = kOk;
  for (const Spec& spec : load_specs(arguments)) {
    const ReplayReport report = replay_spec(spec, arguments.run.out, data_dir(arguments.data));
    if (report.replayed == 0) {
      code = error(spec.id + ": has no point on a real backend; nothing to replay", kBadInput);
    } else if (report.diverged > 0 || report.missing > 0) {
      code = error(fmt::format("{}: {} of {} points diverged, {} were not run", spec.id,
                               report.diverged, report.replayed, report.missing),
                   kFailed);
    }
  }
  return code;
}

int check_command(const Arguments& arguments) {
  const std::string data = data_dir(arguments.data);
  int code = kOk;
  for (const std::string& name : arguments.specs) {
    try {
      const Library library(arguments.experiments);
      const Spec spec = load_spec(library.find_spec(name), arguments.experiments);
      check_spec(spec, data, true);
      fmt::print("{}: ok, points: {} (sweep positions: {}, techniques: {}, seeds: {})\n", spec.id,
                 spec.positions.size() * spec.techniques.size() * spec.seeds.size(),
                 spec.positions.size(), spec.techniques.size(), spec.seeds.size());
    } catch (const SpecError& problem) {
      code = error(problem.what(), kBadInput);
    }
  }
  return code;
}

// Options and commands that CLI11 did not know.
void check_extras(const CLI::App& app, const CLI::App* command) {
  const auto names_of = [](const CLI::App& of) {
    std::vector<std::string> names;
    for (const CLI::Option* option : of.get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
      for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    }
    return names;
  };
  const CLI::App& at = command != nullptr ? *command : app;
  std::vector<std::string> extras = at.remaining();
  if (command != nullptr) {
    const std::vector<std::string> before = app.remaining();
    extras.insert(extras.end(), before.begin(), before.end());
  }
  for (const std::string& extra : extras) {
    if (extra.size() > 1 && extra[0] == '-') {
      const std::string name = extra.substr(0, extra.find('='));
      throw SpecError("unknown option " + in_quotes(name) + "; " + suggest(name, names_of(at)));
    }
    if (command != nullptr) {
      throw SpecError("unexpected " + in_quotes(extra) + " after servelab " + command->get_name());
    }
  }
  if (command != nullptr) return;
  std::vector<std::string> commands;
  for (const CLI::App* each : app.get_subcommands([](const CLI::App*) { return true; })) {
    commands.push_back(each->get_name());
  }
  if (extras.empty()) {
    throw SpecError("a command is missing; " + suggest("", commands) + " (servelab --help)");
  }
  throw SpecError("unknown command " + in_quotes(extras.front()) + "; " +
                  suggest(extras.front(), commands));
}

void add_common(CLI::App* command, Arguments* arguments, bool takes_data) {
  command->allow_extras();
  command
      ->add_option("--experiments", arguments->experiments,
                   "where specs and their shared files are")
      ->capture_default_str();
  if (takes_data) {
    command->add_option("--data", arguments->data,
                        "folder of the real traces; default: $SERVELAB_DATA, else none");
  }
}

struct Commands {
  CLI::App* run;
  CLI::App* replay;
  CLI::App* generate;
  CLI::App* adapters;
  CLI::App* calibrate;
  CLI::App* validate;
  CLI::App* check;
  CLI::App* list;
  CLI::App* show;
  CLI::App* spec;
  CLI::App* version;
};

Commands declare(CLI::App* app, Arguments* arguments) {
  Commands c{};
  app->allow_extras();
  c.run = app->add_subcommand("run", "run specs: compute the points that are not there yet");
  add_common(c.run, arguments, true);
  c.run->add_option("SPEC", arguments->specs, "spec files, or ids such as dlora/fig10")->required();
  c.run->add_option("-j,--jobs", arguments->run.jobs, "points at once; default: the processors")
      ->check(CLI::Range(1, 1024));
  c.run->add_option("--out", arguments->run.out, "where results go")->capture_default_str();
  c.run->add_flag("--force", arguments->run.force, "compute points again that are there");
  c.run->add_flag("-q,--quiet", arguments->run.quiet, "print errors only");
  c.replay = app->add_subcommand(
      "replay", "run points of a real backend again from their stamps; compare decisions");
  add_common(c.replay, arguments, true);
  c.replay->add_option("SPEC", arguments->specs, "spec files or ids")->required();
  c.replay->add_option("--out", arguments->run.out, "where results are")->capture_default_str();
  c.generate = declare_generate(app, &arguments->generate);
  add_common(c.generate, arguments, false);
  c.adapters = declare_adapters(app, &arguments->adapters);
  c.calibrate = declare_calibrate(app, &arguments->calibrate);
  add_common(c.calibrate, arguments, false);
  c.validate = app->add_subcommand(
      "validate", "run specs on the engine and on the twin; their distance by load regime");
  add_common(c.validate, arguments, true);
  c.validate->add_option("SPEC", arguments->specs, "spec files or ids")->required();
  c.validate->add_option("--profile", arguments->validate.profile,
                         "a hardware profile in place of the specs' own");
  c.validate->add_option("--limits", arguments->validate.limits,
                         "SMAPE in percent; default throughput=5,itl=10,ttft=20");
  c.validate->add_option("--out", arguments->run.out, "where results go")->capture_default_str();
  c.validate->add_flag("--force", arguments->run.force, "compute points again that are there");
  c.validate->add_flag("-q,--quiet", arguments->run.quiet, "no progress lines");
  c.check = app->add_subcommand("check", "check specs without running them");
  add_common(c.check, arguments, true);
  c.check->add_option("SPEC", arguments->specs, "spec files or ids")->required();
  c.list = app->add_subcommand("list", "list techniques, policies, models, hardware and specs");
  add_common(c.list, arguments, false);
  c.show = app->add_subcommand("show", "describe a technique and its parameters");
  c.show->allow_extras();
  c.show->add_option("TECHNIQUE", arguments->technique, "its name")->required();
  c.spec = app->add_subcommand("spec", "list every key of a spec");
  c.spec->allow_extras();
  c.spec->add_flag("--schema", arguments->schema, "as a JSON Schema");
  c.version = app->add_subcommand("version", "print versions and the build id");
  c.version->allow_extras();
  return c;
}

void check_experiments(const CLI::App& command, const Arguments& arguments) {
  const CLI::Option* option = command.get_option_no_throw("--experiments");
  std::error_code ignored;
  if (option == nullptr || option->count() == 0) return;
  if (!std::filesystem::is_directory(arguments.experiments, ignored)) {
    throw SpecError(arguments.experiments + ": no such folder; mend --experiments");
  }
}

// CLI11 says "--jobs: 1 required INT in [1 - 1024] missing".
[[noreturn]] void tell_parse_error(const CLI::ParseError& problem) {
  const std::string text = problem.what();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&problem) != nullptr && text.rfind("--", 0) == 0) {
    throw SpecError("option '" + text.substr(0, text.find(':')) + "' needs a value");
  }
  throw SpecError(text);
}

// A full disk or a closed pipe behind stdout shows only when the last of it is written.
int check_stdout(int code) {
  std::cout.flush();
  const bool flushed = std::fflush(stdout) == 0;
  const std::string reason = flushed ? "" : std::string(": ") + std::strerror(errno);
  if (flushed && std::ferror(stdout) == 0 && std::cout.good()) return code;
  return error("stdout cannot be written" + reason, std::max(code, kFailed));
}

int dispatch(const Commands& c, Arguments& arguments) {
  if (c.run->parsed()) return run_command(arguments);
  if (c.check->parsed()) return check_command(arguments);
  if (c.replay->parsed()) return replay_command(arguments);
  if (c.validate->parsed()) return validate_command(arguments);
  if (c.calibrate->parsed()) {
    arguments.calibrate.experiments = arguments.experiments;
    arguments.calibrate.stop = &stop_signal;
    calibrate(arguments.calibrate);
    return kOk;
  }
  if (c.adapters->parsed()) return adapters_command(arguments.adapters);
  if (c.list->parsed()) {
    fmt::print("{}", list_text(Library(arguments.experiments)));
  } else if (c.generate->parsed()) {
    arguments.generate.experiments = arguments.experiments;
    fmt::print("{}\n", generate_text(arguments.generate));
  } else if (c.show->parsed()) {
    fmt::print("{}", technique_text(arguments.technique));
  } else if (c.spec->parsed()) {
    fmt::print("{}", arguments.schema ? spec_schema_json() : spec_keys_text());
  } else {
    fmt::print("{}", version_report());
  }
  return kOk;
}

int run_parsed(int argc, char** argv) {
  Arguments arguments;
  arguments.run.jobs = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  CLI::App app("servelab: a testbed for serving many LoRA adapters", "servelab");
  const Commands commands = declare(&app, &arguments);
  install_signals();
  try {
    const auto command = [&app]() -> const CLI::App* {
      const auto parsed = app.get_subcommands();
      return parsed.empty() ? nullptr : parsed.front();
    };
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& problem) {
      if (problem.get_exit_code() == 0) return app.exit(problem);  // --help
      check_extras(app, command());
      tell_parse_error(problem);
    }
    check_extras(app, command());
    check_experiments(*command(), arguments);
    return dispatch(commands, arguments);
  } catch (const SpecError& problem) {
    return error(problem.what(), kBadInput);
  } catch (const std::exception& problem) {
    if (std::ferror(stdout) != 0) return kFailed;  // told by check_stdout()
    return error(problem.what(), kFailed);
  }
}

}  // namespace

int run_cli(int argc, char** argv) { return check_stdout(run_parsed(argc, argv)); }

}  // namespace servelab
