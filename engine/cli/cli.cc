#include "engine/cli/cli.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "engine/calibrate/replay.h"
#include "engine/cli/command_line.h"
#include "engine/cli/listing.h"
#include "engine/cli/python_verbs.h"
#include "engine/core/check.h"
#include "engine/record/context.h"
#include "engine/run/real_run.h"
#include "engine/run/spec_check.h"
#include "engine/spec/library.h"
#include "engine/spec/spec.h"
#include "engine/spec/spec_text.h"

namespace servelab {
namespace {

constexpr int kOk = 0;
constexpr int kFailed = 1;
constexpr int kBadInput = 2;
constexpr int kUnfinished = 75;  // sysexits.h: EX_TEMPFAIL, run it again

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
    specs.push_back(load_spec(library.find_spec(name), arguments.experiments,
                              arguments.quick ? SpecForm::kQuick : SpecForm::kFull));
    if (!arguments.profile.empty()) use_profile(arguments.profile, &specs.back());
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
  const std::size_t missing =
      total - report.computed - report.cached - report.failed - report.elsewhere;
  fmt::print("{}: {} points: {} run, {} cached", spec.id, total, report.computed, report.cached);
  if (report.failed > 0) fmt::print(", {} FAILED", report.failed);
  if (report.elsewhere > 0) fmt::print(", {} handed out", report.elsewhere);
  if (missing > 0) fmt::print(", {} not run", missing);
  fmt::print("; {} VALID, {} INVALID", report.valid, report.invalid);
  if (report.of_machine > 0) {
    fmt::print(" ({} for this machine's sake: the next run computes them again)",
               report.of_machine);
  }
  fmt::print("; {:.1f} s; ", report.wall_s);
  if (report.slowest_s > 0) {
    fmt::print("slowest {:.2f} s: {}; ", report.slowest_s, report.slowest);
  }
  fmt::print("{}\n", report.collected
                         ? report.folder + "/collected.h5"
                         : report.folder + " (collected.h5 not written: points are missing)");
  std::fflush(stdout);
}

int run_specs(const Arguments& arguments, const std::vector<Spec>& specs, RunExecutor* executor) {
  try {
    for (const Spec& spec : specs) executor->start(spec);
  } catch (const SpecError& problem) {
    return error(problem.what(), kFailed);
  }
  int code = kOk;
  bool unfinished = false;
  for (const Spec& spec : specs) {
    RunReport report;
    try {
      report = executor->finish(spec);
    } catch (const SpecError& problem) {
      code = error(problem.what(), kFailed);
      continue;
    }
    const bool is_stdout_free = arguments.executor.emit != "-";
    if (!arguments.run.quiet && is_stdout_free) print_report(spec, report, report.points);
    if (report.failed > 0) code = std::max(code, report.bad_input ? kBadInput : kFailed);
    if (report.collected && report.valid == 0) {
      code = std::max(code, kFailed);
      error(spec.id + ": no point is VALID; the first one: " + report.first_reasons +
                (report.of_machine > 0 ? "; the same command computes it again" : ""),
            kFailed);
    }
    if (report.interrupted) {
      return error("interrupted: finished points are kept; run the same command to go on",
                   128 + stop_signal.load());
    }
    if (!report.unfinished.empty() && code == kOk) {
      code = error(spec.id + ": " + report.unfinished + "; run the same command to go on",
                   kUnfinished);
    }
    unfinished = unfinished || report.out_of_time;
  }
  if (!arguments.trace.file.empty() && code == kOk && !unfinished) {
    write_trace(specs.front(), arguments.trace, arguments.run.out, arguments.run.data_dir);
  }
  if (unfinished && code == kOk) {
    return error("--time-limit: finished points are kept; run the same command to go on",
                 kUnfinished);
  }
  return code;
}

int run_command(Arguments& arguments) {
  if (arguments.run.out.empty()) throw SpecError("--out needs a folder, such as results");
  arguments.run.data_dir = data_dir(arguments.data);
  arguments.run.stop = &stop_signal;
  if (arguments.time_limit_s > 0) {
    arguments.run.deadline =
        std::chrono::steady_clock::now() +
        std::chrono::milliseconds(static_cast<std::int64_t>(arguments.time_limit_s * 1e3));
  }
  arguments.executor.profile = arguments.profile;
  arguments.executor.quick = arguments.quick;
  if (arguments.run.step_by_step && !arguments.executor.is_local()) {
    throw SpecError("--step-by-step is of runs here: leave it out, or --executor and --emit-jobs");
  }
  const auto executor = make_run_executor(arguments.executor, arguments.run);
  const std::vector<Spec> specs = load_specs(arguments);
  if (!arguments.run.rows.empty() && (specs.size() > 1 || !arguments.executor.is_local())) {
    throw SpecError("--rows is of one spec that runs here");
  }
  for (const std::size_t row : arguments.run.rows) {
    if (row < specs.front().point_count()) continue;
    throw SpecError(fmt::format("{}: has no row {}; its {} points are rows 0 to {}",
                                specs.front().path, row, specs.front().point_count(),
                                specs.front().point_count() - 1));
  }
  for (const Spec& spec : specs) {
    check_spec(spec, arguments.run.data_dir, false);
    if (arguments.executor.is_local()) require_backends(spec);
  }
  check_not_a_spec("--emit-jobs", arguments.executor.emit);
  if (!arguments.trace.file.empty()) {
    if (specs.size() > 1) throw SpecError("--trace is of one spec; give one");
    check_trace(specs.front(), arguments.trace);
  }
  return with_ranks(arguments.ranks, specs, arguments.executor.is_local(), &stop_signal,
                    [&](ranks::RankGroup* group) {
                      arguments.run.ranks = group;
                      return run_specs(arguments, specs, executor.get());
                    });
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

int calibrate_command(Arguments& arguments) {
  CalibrateFromOptions& from = arguments.calibrate_from;
  if (from.rows.empty()) {
    if (arguments.calibrate.model.empty()) {
      return error("calibrate: --model or --from is required", kBadInput);
    }
    calibrate(arguments.calibrate);
    return kOk;
  }
  from.experiments = arguments.experiments;
  from.data_dir = data_dir(arguments.data);
  from.out = arguments.calibrate.out.empty() ? "results/calibration/measured.yaml"
                                             : arguments.calibrate.out;
  calibrate_from(from);
  return kOk;
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

std::string size_text(const Spec& spec) {
  return fmt::format("{}: ok, points: {} (sweep positions: {}, techniques: {}, seeds: {})\n",
                     spec.id, spec.point_count(), spec.positions.size(), spec.techniques.size(),
                     spec.seeds.size());
}

int check_command(const Arguments& arguments) {
  const std::string data = data_dir(arguments.data);
  if (arguments.effective && arguments.specs.size() > 1) {
    throw SpecError("--effective is of one spec; give one");
  }
  int code = kOk;
  for (const std::string& name : arguments.specs) {
    try {
      const Library library(arguments.experiments);
      const std::string path = library.find_spec(name);
      std::string effective;
      std::vector<std::string> sizes;
      for (const SpecForm form : {SpecForm::kFull, SpecForm::kQuick}) {
        const Spec spec = load_spec(path, arguments.experiments, form);
        check_spec(spec, data, true);
        effective = spec.yaml;
        sizes.push_back(size_text(spec));
        if (!spec.has_quick) break;
      }
      // A spec is ok when all of its forms are.
      fmt::print("{}", arguments.effective ? effective : fmt::format("{}", fmt::join(sizes, "")));
    } catch (const SpecError& problem) {
      code = error(problem.what(), kBadInput);
    }
  }
  return code;
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
  if (c.work->parsed()) {
    arguments.work.run.stop = &stop_signal;
    return work_command(arguments.work);
  }
  if (c.check->parsed()) return check_command(arguments);
  if (c.doctor->parsed()) {
    arguments.doctor.data = arguments.data;
    return doctor_command(arguments.doctor);
  }
  if (c.replay->parsed()) return replay_command(arguments);
  if (c.validate->parsed()) return validate_command(arguments);
  if (c.calibrate->parsed()) {
    arguments.calibrate.experiments = arguments.experiments;
    arguments.calibrate.stop = &stop_signal;
    return calibrate_command(arguments);
    return kOk;
  }
  if (c.op_times->parsed()) {
    arguments.op_times.experiments = arguments.experiments;
    answer_op_times(arguments.op_times, std::cin, std::cout);
    return kOk;
  }
  if (c.perf_model->parsed()) {
    perf_model_command(arguments.perf_model);
    return kOk;
  }
  if (c.place->parsed()) {
    arguments.place.experiments = arguments.experiments;
    arguments.place.data_dir = data_dir(arguments.data);
    return place_command(arguments.place);
  }
  if (c.score->parsed()) return score_command(arguments.score);
  if (c.adapters->parsed()) {
    arguments.adapters.experiments = arguments.experiments;
    return adapters_command(arguments.adapters);
  }
  if (c.list->parsed()) {
    fmt::print("{}", list_text(Library(arguments.experiments)));
  } else if (c.generate->parsed()) {
    arguments.generate.experiments = arguments.experiments;
    fmt::print("{}\n", generate_text(arguments.generate));
  } else if (c.show->parsed()) {
    fmt::print("{}", show_text(arguments.shown, Library(arguments.experiments)));
  } else if (c.spec->parsed()) {
    fmt::print("{}", arguments.schema ? spec_schema_json() : spec_keys_text());
  } else {
    fmt::print("{}", version_report(fmt::format(
                         "{}", fmt::join(Registry<BackendKind>::instance().names(), ", "))));
  }
  return kOk;
}

int run_parsed(int argc, char** argv) {
  Arguments arguments;
  arguments.run.jobs = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  CLI::App app("servelab: a testbed for serving many LoRA adapters", "servelab");
  const Commands commands = declare_commands(&app, &arguments);
  install_signals();
  try {
    if (argc > 1 && is_python_verb(argv[1])) python_verb(argc, argv);
    int code = kOk;
    if (!parse_commands(argc, argv, &app, arguments, &code)) return code;
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
