// What servelab's commands and options are; cli.cc carries them out.
#ifndef SERVELAB_RUN_COMMAND_LINE_H_
#define SERVELAB_RUN_COMMAND_LINE_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "engine/run/adapters_cli.h"
#include "engine/run/calibrate.h"
#include "engine/run/doctor/doctor_cli.h"
#include "engine/run/executor_cli.h"
#include "engine/run/generate.h"
#include "engine/run/rank_processes.h"
#include "engine/run/runner.h"
#include "engine/run/trace.h"
#include "engine/run/validate.h"

namespace servelab {

struct Arguments {
  std::vector<std::string> specs;
  std::string technique;
  std::string experiments = "experiments";
  std::string data;
  RunOptions run;
  ExecutorOptions executor;
  RankOptions ranks;
  WorkArguments work;
  GenerateOptions generate;
  AdaptersArguments adapters;
  CalibrateOptions calibrate;
  DoctorOptions doctor;
  ValidateOptions validate;
  bool quick = false;
  std::string profile;  // of the hardware, in place of the specs' own; empty: theirs
  double time_limit_s = 0;
  TraceOptions trace;
  bool schema = false;
};

struct Commands {
  CLI::App* run;
  CLI::App* work;
  CLI::App* replay;
  CLI::App* generate;
  CLI::App* adapters;
  CLI::App* calibrate;
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

#endif  // SERVELAB_RUN_COMMAND_LINE_H_
