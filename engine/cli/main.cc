#include <cstdlib>
#include <string_view>

#include "engine/backend/host_lora/worker.h"
#include "engine/cli/cli.h"

int main(int argc, char** argv) {
  // This program begins itself anew as LoRA workers (engine/backend/host_lora): no command.
  if (argc == 3 && std::string_view(argv[1]) == "lora-worker") {
    return servelab::host_lora::serve_process(std::atoi(argv[2]));
  }
  return servelab::run_cli(argc, argv);
}
