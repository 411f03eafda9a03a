// The options of `servelab run` that say where points are computed, and `servelab work`, which
// computes one task of a job.
#ifndef SERVELAB_CLI_EXECUTOR_CLI_H_
#define SERVELAB_CLI_EXECUTOR_CLI_H_

#include <string>

#include "engine/jobs/executor.h"

namespace CLI {
class App;
}

namespace servelab {

struct WorkArguments {
  std::string job;
  int task = 0;
  RunOptions run;  // jobs, quiet, deadline and stop
};

void declare_executor(CLI::App* run, ExecutorOptions* options);
CLI::App* declare_work(CLI::App* app, WorkArguments* arguments);

// The exit code: 0 when every point of the task is there or another process computes it, 1 when
// points failed, 128 + n after signal n.
int work_command(const WorkArguments& arguments);

}  // namespace servelab

#endif  // SERVELAB_CLI_EXECUTOR_CLI_H_
