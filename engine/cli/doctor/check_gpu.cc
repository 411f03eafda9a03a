#include <cstdio>
#include <sstream>

#include "engine/cli/doctor/checks.h"

namespace servelab::doctor {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kQuick{1500}, kPatient{30000};
constexpr const char* kWithout =
    "`backend: cuda`: specs named *_cuda, make gpu-check and gpu-figures; all others run";

// Whether an NVIDIA display or compute device is plugged in, driver or not.
bool has_pci_device(const Machine& machine) {
  const std::string folder = "/sys/bus/pci/devices";
  for (const std::string& name : machine.names_in(folder)) {
    const bool is_nvidia = machine.line(folder + "/" + name + "/vendor") == "0x10de";
    if (is_nvidia && machine.line(folder + "/" + name + "/class").rfind("0x03", 0) == 0) {
      return true;
    }
  }
  return false;
}

// A compute capability.
struct Capability {
  int major = 0;
  int minor = 0;
};

// "90a-real": code for compute capability 9.0 alone; "80-real": for 8.0 and later 8.x; "-virtual"
// and plain numbers: for all later ones too.
bool runs_on(const std::string& target, const Capability& device) {
  int number = 0, used = 0;
  if (std::sscanf(target.c_str(), "%d%n", &number, &used) != 1) return false;
  const std::string rest = target.substr(static_cast<std::size_t>(used));
  const int major = number / 10, minor = number % 10;
  if (!rest.empty() && rest[0] == 'a') return device.major == major && device.minor == minor;
  if (device.major == major) return device.minor >= minor;
  return rest != "-real" && device.major > major;
}

// `line`: "NVIDIA H100, 9.0, 580.95.05, 12 MiB" of nvidia-smi.
Finding check_device(const BuildFacts& facts, const std::string& name, const std::string& line) {
  Capability device;
  const std::size_t comma = line.find(", ");
  if (comma == std::string::npos ||
      std::sscanf(line.c_str() + comma, ", %d.%d", &device.major, &device.minor) != 2) {
    return note(name, line + ": not understood", "not known", "nvidia-smi");
  }
  if (facts.cuda_targets.empty()) {
    return note(name, line + "; this program was built without CUDA", kWithout,
                "install the CUDA Toolkit (nvcc), then make build");
  }
  for (const std::string& target : facts.cuda_targets) {
    if (runs_on(target, device)) return ok(name, line + "; kernels of sm_" + target);
  }
  return note(
      name,
      fmt::format("{}; kernels were compiled for sm_{}", line, joined(facts.cuda_targets, ", sm_")),
      kWithout,
      fmt::format("make build CMAKE_FLAGS=-DCMAKE_CUDA_ARCHITECTURES={}{}-real", device.major,
                  device.minor));
}

}  // namespace

Findings check_gpu(const Subject& subject) {
  const Machine& machine = subject.machine;
  const std::string program = machine.find_program("nvidia-smi");
  if (program.empty() && has_pci_device(machine)) {
    return {note("driver", "an NVIDIA device, and no nvidia-smi", kWithout,
                 "install the NVIDIA driver; in a container: start it with its GPUs (docker run "
                 "--gpus all)")};
  }
  if (program.empty()) return {note("driver", "no NVIDIA driver and no device", kWithout)};
  const milliseconds limit = subject.full ? kPatient : kQuick;
  constexpr const char* kQuery = "--query-gpu=name,compute_cap,driver_version,memory.used";
  const Output answer =
      machine.run({machine.place(program), kQuery, "--format=csv,noheader"}, limit);
  if (answer.timed_out) {
    return {note("driver", fmt::format("nvidia-smi gives no answer in {} ms", limit.count()),
                 kWithout,
                 "servelab doctor --full waits longer; nvidia-smi -pm 1 (persistence) lets drivers "
                 "answer at once")};
  }
  Findings findings;
  std::istringstream lines(answer.text);
  for (std::string line; std::getline(lines, line);) {
    if (answer.code != 0) {
      return {note("driver", "nvidia-smi fails: " + line, kWithout,
                   "ls -l /dev/nvidia*; look for Xid errors in the kernel's log")};
    }
    const std::string name = fmt::format("device{}", findings.size());
    findings.push_back(check_device(subject.build, name, line));
  }
  if (findings.empty()) {
    return {note("driver", "nvidia-smi knows no device", kWithout, "nvidia-smi")};
  }
  return findings;
}

}  // namespace servelab::doctor
