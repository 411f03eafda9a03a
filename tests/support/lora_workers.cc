#include "tests/support/lora_workers.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>

namespace servelab::test {

bool lives(int process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t state = text.rfind(')');
  return state != std::string::npos && state + 2 < text.size() && text[state + 2] != 'Z';
}

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
  using Threads = std::filesystem::directory_iterator;
  for (Threads at(processes / std::to_string(process) / "task", gone); !gone && at != Threads();
       at.increment(gone)) {
    std::ifstream list(at->path() / "children");
    for (int child = 0; list >> child;) {
      // A child is the engine's program until it has become its own; one that ends while it is read
      // fails the stream, whose buffer alone would throw.
      std::ifstream file(processes / std::to_string(child) / "cmdline");
      for (std::string word; std::getline(file, word, '\0');) {
        if (word.find("lora-worker") != std::string::npos) found.insert(child);
      }
    }
  }
  return found;
}

bool ends_soon(int process) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  while (lives(process)) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace servelab::test
