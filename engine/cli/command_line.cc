#include "engine/cli/command_line.h"

#include <filesystem>
#include <system_error>

#include "engine/backend/device/accelerator.h"
#include "engine/cli/engine_cli.h"
#include "engine/cli/python_verbs.h"
#include "engine/cli/ranges.h"
#include "engine/core/check.h"
#include "engine/spec/spec_text.h"

namespace servelab {
namespace {

constexpr const char* kProfileHelp = "a hardware profile in place of the specs' own";

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

void add_data(CLI::App* command, Arguments* arguments) {
  command->add_option("--data", arguments->data,
                      "folder of the real traces; default: $SERVELAB_DATA, else none");
}

void add_common(CLI::App* command, Arguments* arguments, bool takes_data) {
  command->allow_extras();
  command
      ->add_option("--experiments", arguments->experiments,
                   "where specs and their shared files are")
      ->capture_default_str();
  if (takes_data) add_data(command, arguments);
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

void declare_trace(CLI::App* run, TraceOptions* trace) {
  CLI::Option* file = run->add_option(
      "--trace", trace->file,
      "also write what the techniques did, for Perfetto: at the first position and seed, unless "
      "--trace-only names others");
  run->add_option(
         "--trace-only", trace->only,
         "trace points with this technique=LABEL, seed=N or SETTING=VALUE; may be repeated")
      ->allow_extra_args(false)
      ->needs(file);
  run->add_option("--trace-window", trace->window_s, "trace FROM TO, in seconds of the run")
      ->expected(2)
      ->check(number_in(0.0, 1e9))
      ->needs(file);
}

}  // namespace

Commands declare_commands(CLI::App* app, Arguments* arguments) {
  Commands c{};
  app->allow_extras();
  c.run = app->add_subcommand("run", "run specs: compute the points that are not there yet");
  add_common(c.run, arguments, true);
  c.run->add_option("SPEC", arguments->specs, "spec files, or ids such as dlora/fig10")->required();
  c.run->add_option("-j,--jobs", arguments->run.jobs, "points at once; default: the processors")
      ->check(CLI::Range(1, 1024));
  c.run->add_option("--out", arguments->run.out, "where results go")->capture_default_str();
  c.run->add_flag("--force", arguments->run.force, "compute points again that are there");
  c.run
      ->add_option("--rows", arguments->run.rows,
                   "compute these points alone, by their rows in collected.h5, and collect nothing")
      ->delimiter(',')
      ->allow_extra_args(false);
  c.run->add_flag("--quick", arguments->quick,
                  "the short form that a spec's `quick` section describes, in a folder of its own");
  c.run
      ->add_option("--time-limit", arguments->time_limit_s,
                   "seconds after which no point is to be running; the same command goes on later")
      ->check(number_in(1e-3, 1e9));
  c.run->add_option("--profile", arguments->profile, kProfileHelp);
  c.run->add_flag("--step-by-step", arguments->run.step_by_step,
                  "ask techniques for every step, also where their plans repeat: the same results, "
                  "later");
  c.run->add_flag("-q,--quiet", arguments->run.quiet, "print errors only");
  declare_executor(c.run, &arguments->executor);
  declare_ranks(c.run, &arguments->ranks);
  declare_trace(c.run, &arguments->trace);
  c.work = declare_work(app, &arguments->work);
  c.replay = app->add_subcommand(
      "replay", "run points of a real backend again from their stamps; compare decisions");
  add_common(c.replay, arguments, true);
  c.replay->add_option("SPEC", arguments->specs, "spec files or ids")->required();
  c.replay->add_option("--out", arguments->run.out, "where results are")->capture_default_str();
  c.generate = declare_generate(app, &arguments->generate);
  add_common(c.generate, arguments, false);
  c.adapters = declare_adapters(app, &arguments->adapters);
  add_common(c.adapters, arguments, false);
  declare_python_verbs(app);
  c.calibrate = declare_calibrate(app, &arguments->calibrate, &arguments->calibrate_from);
  add_common(c.calibrate, arguments, true);
  c.op_times = declare_op_times(app, &arguments->op_times);
  add_common(c.op_times, arguments, false);
  c.perf_model = declare_perf_model(app, &arguments->perf_model);
  c.place = declare_place(app, &arguments->place);
  add_common(c.place, arguments, true);
  c.score = declare_score(app, &arguments->score);
  c.validate = app->add_subcommand(
      "validate", "run specs on the engine and on the twin; their distance by load regime");
  add_common(c.validate, arguments, true);
  c.validate->add_option("SPEC", arguments->specs, "spec files or ids")->required();
  c.validate->add_option("--profile", arguments->profile, kProfileHelp);
  c.validate->add_option("--backend", arguments->validate.backend, "the engine")
      ->check(CLI::IsMember(accelerator_names()))
      ->capture_default_str();
  c.validate
      ->add_option("--measured", arguments->validate.measured,
                   "CSV of another server's runs (engine/README.md), instead of running an engine")
      ->check(CLI::ExistingFile);
  c.validate->add_option("--limits", arguments->validate.limits,
                         "SMAPE in percent; default throughput=5,itl=10,ttft=20; none of latency");
  c.validate->add_option("--out", arguments->run.out, "where results go")->capture_default_str();
  c.validate->add_flag("--force", arguments->run.force, "compute points again that are there");
  c.validate->add_flag("-q,--quiet", arguments->run.quiet, "no progress lines");
  c.check = app->add_subcommand("check", "check specs without running them");
  add_common(c.check, arguments, true);
  c.check->add_option("SPEC", arguments->specs, "spec files or ids")->required();
  c.check->add_flag("--effective", arguments->effective,
                    "print the spec, with what it extends, as one that extends nothing");
  c.list =
      app->add_subcommand("list", "list techniques, policies, engines, models, hardware and specs");
  add_common(c.list, arguments, false);
  c.show = app->add_subcommand("show", "describe a technique or a named engine");
  add_common(c.show, arguments, false);
  c.show->add_option("NAME", arguments->shown, "a technique, an engine, or 'engines'")->required();
  c.spec = app->add_subcommand("spec", "list every key of a spec");
  c.spec->allow_extras();
  c.spec->add_flag("--schema", arguments->schema, "as a JSON Schema");
  c.doctor = declare_doctor(app, &arguments->doctor);
  c.doctor->allow_extras();
  add_data(c.doctor, arguments);
  c.version = app->add_subcommand("version", "print versions and the build id");
  c.version->allow_extras();
  return c;
}

bool parse_commands(int argc, char** argv, CLI::App* app, const Arguments& arguments, int* code) {
  const auto command = [app]() -> const CLI::App* {
    const auto parsed = app->get_subcommands();
    return parsed.empty() ? nullptr : parsed.front();
  };
  try {
    app->parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    if (problem.get_exit_code() == 0) {
      *code = app->exit(problem);
      return false;
    }
    check_extras(*app, command());
    tell_parse_error(problem);
  }
  check_extras(*app, command());
  check_experiments(*command(), arguments);
  return true;
}

}  // namespace servelab
