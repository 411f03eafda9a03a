// Options of the commands that drive an engine without a spec.
#ifndef SERVELAB_CLI_ENGINE_CLI_H_
#define SERVELAB_CLI_ENGINE_CLI_H_

#include "engine/calibrate/calibrate.h"
#include "engine/calibrate/calibrate_from.h"
#include "engine/calibrate/op_times.h"
#include "engine/cli/generate.h"

namespace CLI {
class App;
}

namespace servelab {

// Each adds a command that fills its options, which outlive the parsing.
CLI::App* declare_generate(CLI::App* app, GenerateOptions* options);
CLI::App* declare_calibrate(CLI::App* app, CalibrateOptions* options, CalibrateFromOptions* from);
CLI::App* declare_op_times(CLI::App* app, OpTimesOptions* options);  // for programs: not in --help

}  // namespace servelab

#endif  // SERVELAB_CLI_ENGINE_CLI_H_
