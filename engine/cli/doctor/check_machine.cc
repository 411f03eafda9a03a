#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "engine/cli/doctor/checks.h"
#include "engine/core/cgroup.h"

namespace servelab::doctor {
namespace {

// A run of a million requests to 40,000 adapters on 60 replicas (tests/bench/README.md).
constexpr Bytes kMillionRequests = 430 * kMiB;

Finding check_cores(const Machine& machine) {
  const int usable = machine.usable_cores();
  const std::optional<double> quota = cgroup_limits(machine.place("")).cores;
  const std::string found = fmt::format("{} can be used", usable);
  if (!quota || *quota >= usable) return ok("cores", found);
  return note("cores",
              fmt::format("{}, and the control group allows the time of {:.3g}", found, *quota),
              "programs start a thread for each core and are then stopped for a part of every "
              "100 ms: wall-clock runs stall",
              fmt::format("servelab run --jobs {0}, `runtime.threads: {0}` in specs of the CPU "
                          "engine, or a container without the limit",
                          std::max(1, static_cast<int>(std::floor(*quota)))));
}

Finding check_governor(const Machine& machine) {
  const std::string governor =
      machine.line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  if (governor.empty()) {
    return ok("governor", "not shown here, as in most virtual machines: the host sets the clock");
  }
  if (governor == "performance") return ok("governor", governor);
  return note("governor", governor,
              "the clock follows the load: steps after a pause are slow, and measurements of the "
              "CPU engine scatter",
              "sudo cpupower frequency-set -g performance");
}

Finding check_load(const Machine& machine) {
  double load = 0;
  if (std::sscanf(machine.line("/proc/loadavg").c_str(), "%lf", &load) != 1) {
    return ok("load", "not shown here");
  }
  const int cores = std::max(1, machine.usable_cores());
  const std::string found = fmt::format("{:.2f} over the last minute, on {} cores", load, cores);
  constexpr double kIdle = 0.1;  // of the cores
  if (load <= kIdle * cores) return ok("load", found);
  return note("load", found, "measurements of the CPU engine on a busy machine are noise",
              "wait, or look with: top");
}

// "MemAvailable:   12345 kB" of /proc/meminfo.
Bytes meminfo(const Machine& machine, const std::string& key) {
  std::istringstream lines(machine.text("/proc/meminfo"));
  for (std::string line; std::getline(lines, line);) {
    long kib = 0;
    if (line.rfind(key + ":", 0) == 0 &&
        std::sscanf(line.c_str() + key.size() + 1, "%ld", &kib) == 1) {
      return kib * kKiB;
    }
  }
  return 0;
}

Finding check_memory(const Machine& machine) {
  const Bytes total = meminfo(machine, "MemTotal");
  if (total == 0) return ok("memory", "not shown here");
  const CgroupLimits group = cgroup_limits(machine.place(""));
  const std::optional<Bytes> limit = group.memory;
  const Bytes available =
      std::min(meminfo(machine, "MemAvailable"), group.memory_left.value_or(total));
  std::string found = gib(total) + ", " + gib(available) + " of it available";
  if (limit && *limit < total) found += "; the control group's limit is " + gib(*limit);
  if (available >= kMillionRequests) return ok("memory", found);
  return note("memory", found,
              "runs of a million requests do not fit, nor may several points at once",
              "end other programs, or servelab run --jobs 1");
}

}  // namespace

Findings check_machine(const Subject& subject) {
  const Machine& machine = subject.machine;
  return {check_cores(machine), check_governor(machine), check_load(machine),
          check_memory(machine)};
}

}  // namespace servelab::doctor
