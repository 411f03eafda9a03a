#include "tests/support/lora_workers.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

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

std::set<int> lora_workers_of(int process) {
  const std::filesystem::path processes = "/proc";
  std::set<int> found;
  std::error_code gone;
  for (const auto& thread :
       std::filesystem::directory_iterator(processes / std::to_string(process) / "task", gone)) {
    std::ifstream list(thread.path() / "children");
    for (int child = 0; list >> child;) {
      // A child is the engine's program until it has become its own.
      std::ifstream file(processes / std::to_string(child) / "cmdline");
      const std::string line(std::istreambuf_iterator<char>(file), {});
      if (line.find("lora-worker") != std::string::npos) found.insert(child);
    }
  }
  return found;
}

}  // namespace servelab::test
