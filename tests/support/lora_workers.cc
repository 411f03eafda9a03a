#include "tests/support/lora_workers.h"

#include <filesystem>
#include <fstream>

namespace servelab::test {

HostLoraPlan lora_workers(HostLoraBy by, int workers, HostLoraTransport transport) {
  HostLoraPlan plan;
  plan.by = by;
  plan.transport = transport;
  plan.workers = workers;
  plan.rows_per_worker = 3;
  plan.shares_cores = true;
  plan.program = SERVELAB_BINARY;
  return plan;
}

std::set<int> child_processes() {
  std::set<int> found;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream list(thread.path() / "children");
    for (int process = 0; list >> process;) found.insert(process);
  }
  return found;
}

}  // namespace servelab::test
