// What servelab's commands and options are; cli.cc carries them out.
#ifndef SERVELAB_CLI_COMMAND_LINE_H_
#define SERVELAB_CLI_COMMAND_LINE_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "engine/calibrate/calibrate.h"
#include "engine/calibrate/calibrate_from.h"
#include "engine/calibrate/op_times.h"
#include "engine/calibrate/validate.h"
#include "engine/cli/adapters_cli.h"
#include "engine/cli/doctor/doctor_cli.h"
#include "engine/cli/executor_cli.h"
#include "engine/cli/generate.h"
#include "engine/cli/perf_model.h"
#include "engine/cli/place.h"
#include "engine/cli/rank_processes.h"
#include "engine/cli/score_cli.h"
#include "engine/cli/trace.h"
#include "engine/run/runner.h"

namespace servelab {

struct Arguments {
  std::vector<std::string> specs;
  std::string shown;
  std::string experiments = "experiments";
  std::string data;
  RunOptions run;
  ExecutorOptions executor;
  RankOptions ranks;
  WorkArguments work;
  GenerateOptions generate;
  AdaptersArguments adapters;
  CalibrateOptions calibrate;
  CalibrateFromOptions calibrate_from;
  OpTimesOptions op_times;
  PerfModelArguments perf_model;
  PlaceArguments place;
  ScoreArguments score;
  DoctorOptions doctor;
  ValidateOptions validate;
  bool quick = false;
  std::string profile;  // of the hardware, in place of the specs' own; empty: theirs
  double time_limit_s = 0;
  TraceOptions trace;
  bool schema = false;
  bool effective = false;
};

struct Commands {
  CLI::App* run;
  CLI::App* work;
  CLI::App* replay;
  CLI::App* generate;
  CLI::App* adapters;
  CLI::App* calibrate;
  CLI::App* op_times;
  CLI::App* perf_model;
  CLI::App* place;
  CLI::App* score;
  CLI::App* doctor;
  CLI::App* validate;
  CLI::App* check;
  CLI::App* list;
  CLI::App* show;
  CLI::App* spec;
  CLI::App* version;
};

// Adds all commands to `app`; parsing fills `arguments`.
Commands declare_commands(CLI::App* app, Arguments* arguments);

// Parses; false when CLI11 has answered already (--help), with the exit code in *code. SpecError
// for whatever it did not know, with the nearest valid name.
bool parse_commands(int argc, char** argv, CLI::App* app, const Arguments& arguments, int* code);

}  // namespace servelab

#endif  // SERVELAB_CLI_COMMAND_LINE_H_
