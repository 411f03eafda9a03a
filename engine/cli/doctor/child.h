// Work in a child process, which may hang or crash without harm to who asks.
#ifndef SERVELAB_CLI_DOCTOR_CHILD_H_
#define SERVELAB_CLI_DOCTOR_CHILD_H_

#include <chrono>
#include <functional>
#include <string>

namespace servelab::doctor {

struct ChildResult {
  int status = -1;  // as waitpid() gives it; -1 when no process could be made
  bool timed_out = false;
  std::string text;  // what it wrote to its stdout, 64 KiB at most
};

// Forks; the child has /dev/null for stdin and stderr and runs `body`, whose value is its exit
// code. Killed with all that it started after `limit`.
ChildResult run_child(const std::function<int()>& body, std::chrono::milliseconds limit);

}  // namespace servelab::doctor

#endif  // SERVELAB_CLI_DOCTOR_CHILD_H_
