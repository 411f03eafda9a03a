#include <cstdio>
#include <optional>

#include "engine/cli/doctor/checks.h"
#include "engine/cli/doctor/format.h"

namespace servelab::doctor {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kQuick{1200}, kPatient{30000};
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

// Why no device can be used, or nothing when some can.
std::optional<Finding> check_driver(const Machine& machine, const GpuFacts& gpus) {
  const bool has_module = machine.exists("/proc/driver/nvidia/version");
  if (gpus.timed_out) {
    return note("driver", "the NVIDIA driver gives " + gpus.reason, kWithout,
                "servelab doctor --full waits longer; nvidia-smi -pm 1 (persistence) lets drivers "
                "answer at once");
  }
  if (!gpus.has_driver && has_module) {
    return note("driver", "the kernel's part is loaded, libcuda.so.1 is not: " + gpus.reason,
                kWithout, "in a container: start it with its GPUs (docker run --gpus all)");
  }
  if (!gpus.has_driver && has_pci_device(machine)) {
    return note("driver", "an NVIDIA device without a driver", kWithout,
                "install the NVIDIA driver");
  }
  if (!gpus.has_driver) return note("driver", "no NVIDIA driver and no device", kWithout);
  if (gpus.cuda_error != 0) {
    const std::string why = gpus.reason.empty()
                                ? fmt::format("cuInit() fails with error {}", gpus.cuda_error)
                                : gpus.reason;
    return note("driver", fmt::format("NVIDIA driver {}: {}", gpus.driver, why), kWithout,
                "ls -l /dev/nvidia*; look for Xid errors in the kernel's log");
  }
  if (gpus.usable == 0) {
    return note("driver",
                fmt::format("NVIDIA driver {}, and no device that may be used", gpus.driver),
                kWithout, "look at $CUDA_VISIBLE_DEVICES");
  }
  return std::nullopt;
}

// "90a-real": code for compute capability 9.0 alone; "80-real": for 8.0 and later 8.x; "-virtual"
// and plain numbers: for all later ones too.
bool runs_on(const std::string& target, const GpuDevice& device) {
  int number = 0, used = 0;
  if (std::sscanf(target.c_str(), "%d%n", &number, &used) != 1) return false;
  const std::string rest = target.substr(static_cast<std::size_t>(used));
  const int major = number / 10, minor = number % 10;
  if (!rest.empty() && rest[0] == 'a') return device.major == major && device.minor == minor;
  if (device.major == major) return device.minor >= minor;
  return rest != "-real" && device.major > major;
}

Finding check_kernels(const BuildFacts& facts, const GpuDevice& device, const std::string& name) {
  const std::string capability =
      fmt::format("compute capability {}.{}", device.major, device.minor);
  if (facts.cuda_targets.empty()) {
    return note(name, capability + "; this program was built without CUDA", kWithout,
                "install the CUDA Toolkit (nvcc), then make build");
  }
  for (const std::string& target : facts.cuda_targets) {
    if (runs_on(target, device)) return ok(name, capability + ", kernels of sm_" + target);
  }
  return note(name,
              fmt::format("{}; kernels were compiled for sm_{}", capability,
                          joined(facts.cuda_targets, ", sm_")),
              kWithout,
              fmt::format("make build CMAKE_FLAGS=-DCMAKE_CUDA_ARCHITECTURES={}{}-real",
                          device.major, device.minor));
}

// What makes measurements on a device something else than they seem.
Finding check_state(const GpuDevice& device, const std::string& name) {
  // NVML's clocksThrottleReasons, without idle (1) and a user's own setting of the clocks (2).
  constexpr long kUnwanted = ~3L;
  std::vector<std::string> found, costs, mends;
  const auto add = [&](const char* what, const char* cost, const char* mend) {
    found.emplace_back(what);
    costs.emplace_back(cost);
    mends.emplace_back(mend);
  };
  if (device.mig == 1) {
    add("split by MIG", "each instance has a part of the memory and of the multiprocessors",
        "sudo nvidia-smi -mig 0");
  }
  if (device.persistence == 0) {
    add("persistence off", "every program waits for the driver to start", "sudo nvidia-smi -pm 1");
  }
  if (device.throttled > 0 && (device.throttled & kUnwanted) != 0) {
    add("clocks held down", "kernels are slower than the card", "nvidia-smi -q -d PERFORMANCE");
  }
  if (device.processes > 0) {
    add("in use by others", "measurements share the card with them", "nvidia-smi");
  }
  const std::string clocks =
      device.max_clock_mhz > 0 ? fmt::format("{} of {} MHz", device.clock_mhz, device.max_clock_mhz)
                               : "clocks not shown";
  if (found.empty()) return ok(name, clocks);
  return note(name, fmt::format("{}; {}", joined(found), clocks), joined(costs, "; "),
              joined(mends, "; "));
}

}  // namespace

Findings check_gpu(const Subject& subject) {
  const GpuFacts gpus = subject.machine.gpus(subject.full ? kPatient : kQuick);
  if (const auto problem = check_driver(subject.machine, gpus)) return {*problem};
  Findings findings = {ok(
      "driver", fmt::format("NVIDIA {}, for CUDA {}.{}; {} devices can be used", gpus.driver,
                            gpus.cuda_driver / 1000, gpus.cuda_driver % 1000 / 10, gpus.usable))};
  for (std::size_t i = 0; i < gpus.devices.size(); ++i) {
    const GpuDevice& device = gpus.devices[i];
    findings.push_back(
        ok(fmt::format("device{}", i),
           fmt::format("{}, {} of {} free", device.name, gib(device.free), gib(device.memory))));
    findings.push_back(check_kernels(subject.build, device, fmt::format("kernels{}", i)));
    findings.push_back(check_state(device, fmt::format("state{}", i)));
  }
  if (gpus.has_nccl) {
    findings.push_back(ok("nccl", "can be loaded"));
  } else {
    findings.push_back(note("nccl", "libnccl.so.2 cannot be loaded",
                            "cluster.tensor_parallel above 1 with `backend: cuda`",
                            "install NCCL (libnccl2, or pip install nvidia-nccl-cu13)"));
  }
  return findings;
}

}  // namespace servelab::doctor
