#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <sstream>

#include "engine/cli/doctor/cgroup.h"
#include "engine/cli/doctor/checks.h"
#include "engine/cli/doctor/format.h"

namespace servelab::doctor {
namespace {

constexpr const char* kCpus = "/sys/devices/system/cpu";

// What is needed for each instruction set's kernels (kernels/ops.cc), as /proc/cpuinfo names it.
constexpr const char* kAvx2[] = {"avx2", "fma", "f16c"};
constexpr const char* kAvx512[] = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16"};

std::set<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  std::set<std::string> words;
  for (std::string word; in >> word;) words.insert(word);
  return words;
}

struct CpuInfo {
  std::string model = "unknown";
  int count = 0;
  std::set<std::string> flags;
};

CpuInfo cpu_info(const Machine& machine) {
  CpuInfo info;
  std::istringstream lines(machine.text("/proc/cpuinfo"));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
    const std::string value = colon + 2 <= line.size() ? line.substr(colon + 2) : "";
    if (key == "processor") ++info.count;
    if (key == "model name") info.model = value;
    if (info.flags.empty() && (key == "flags" || key == "Features")) info.flags = words_of(value);
  }
  return info;
}

// cpu0, cpu1, ...
std::vector<std::string> cpu_folders(const Machine& machine) {
  std::vector<std::string> folders;
  for (const std::string& name : machine.names_in(kCpus)) {
    const bool is_cpu = name.size() > 3 && name.rfind("cpu", 0) == 0 &&
                        name.find_first_not_of("0123456789", 3) == std::string::npos;
    if (is_cpu) folders.push_back(std::string(kCpus) + "/" + name);
  }
  return folders;
}

Finding check_cores(const Machine& machine, const CpuInfo& info) {
  const int usable = machine.usable_cores();
  const std::optional<double> quota = cgroup_limits(machine).cores;
  std::string found = fmt::format("{} of {} can be used", usable, std::max(info.count, usable));
  if (!quota || *quota >= usable) return ok("cores", found);
  found += fmt::format(", and the control group allows the time of {:.3g}", *quota);
  return note("cores", found,
              "programs start a thread for each core and are then stopped for a part of every "
              "100 ms: wall-clock runs stall",
              fmt::format("servelab run --jobs {0}, `runtime.threads: {0}` in specs of the CPU "
                          "engine, or a container without the limit",
                          std::max(1, static_cast<int>(std::floor(*quota)))));
}

template <std::size_t kCount>
bool has_all(const CpuInfo& info, const char* const (&flags)[kCount]) {
  return std::all_of(std::begin(flags), std::end(flags),
                     [&](const char* flag) { return info.flags.contains(flag); });
}

Finding check_instructions(const CpuInfo& info) {
  if (!has_all(info, kAvx2)) {
    return note(
        "instructions", "no AVX2 with FMA and F16C",
        "the CPU engine computes with the naive reference loops, more than ten times slower; "
        "the twin does not mind");
  }
  if (!has_all(info, kAvx512)) {
    return note("instructions", "AVX2, but not AVX-512 with BF16",
                "the CPU engine uses its AVX2 kernels; calibrate it on this processor before twin "
                "and engine are compared",
                "servelab calibrate --backend cpu --model llama-134m");
  }
  return ok("instructions", "AVX2 and AVX-512 with BF16");
}

Finding check_governor(const Machine& machine) {
  std::set<std::string> governors;
  for (const std::string& folder : cpu_folders(machine)) {
    const std::string governor = machine.line(folder + "/cpufreq/scaling_governor");
    if (!governor.empty()) governors.insert(governor);
  }
  if (governors.empty()) {
    return ok("governor", "not shown here, as in most virtual machines: the host sets the clock");
  }
  const std::string found = joined(governors);
  if (governors == std::set<std::string>{"performance"}) return ok("governor", found);
  return note("governor", found,
              "the clock follows the load: steps after a pause are slow, and measurements of the "
              "CPU engine scatter",
              "sudo cpupower frequency-set -g performance");
}

Finding check_turbo(const Machine& machine) {
  const std::string boost = machine.line(std::string(kCpus) + "/cpufreq/boost");
  const std::string no_turbo = machine.line(std::string(kCpus) + "/intel_pstate/no_turbo");
  if (boost.empty() && no_turbo.empty()) return ok("turbo", "not shown here");
  if (boost == "0" || no_turbo == "1") return ok("turbo", "off");
  return note("turbo", "on",
              "the clock depends on temperature and on what other cores do: measurements of the "
              "CPU engine drift",
              no_turbo.empty() ? "echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost"
                               : "echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo");
}

Finding check_smt(const Machine& machine) {
  const std::string active = machine.line(std::string(kCpus) + "/smt/active");
  if (active != "1") return ok("smt", active.empty() ? "not shown here" : "off");
  std::set<std::string> cores;  // by the list of each one's threads
  for (const std::string& folder : cpu_folders(machine)) {
    const std::string threads = machine.line(folder + "/topology/thread_siblings_list");
    if (!threads.empty()) cores.insert(threads);
  }
  return note("smt", fmt::format("on, {} physical cores", cores.size()),
              "two threads of the CPU engine may share a core, where a second one gains little and "
              "slows the first",
              fmt::format("`runtime.threads: {}` in specs of the CPU engine", cores.size()));
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

// The share of time that the host of a virtual machine gave to others, since it started.
Finding check_steal(const Machine& machine) {
  std::istringstream fields(machine.line("/proc/stat"));
  std::string name;
  fields >> name;
  std::vector<double> ticks;
  for (double value = 0; fields >> value;) ticks.push_back(value);
  constexpr std::size_t kSteal = 7, kNoGuests = 8;  // guest time is in user time already
  double total = 0;
  for (std::size_t i = 0; i < std::min(ticks.size(), kNoGuests); ++i) total += ticks[i];
  if (ticks.size() <= kSteal || total <= 0) return ok("steal", "not shown here");
  const double share = 100 * ticks[kSteal] / total;
  const std::string found = fmt::format("{:.1f} % of the time since start went to others", share);
  if (share < 1) return ok("steal", found);
  return note("steal", found, "this is a virtual machine whose host is busy: measurements scatter",
              "measure on a machine of its own, or repeat and compare the ranges");
}

Finding check_huge_pages(const Machine& machine) {
  const std::string text = machine.line("/sys/kernel/mm/transparent_hugepage/enabled");
  const std::size_t begin = text.find('['), end = text.find(']');
  if (begin == std::string::npos || end == std::string::npos) {
    return ok("huge_pages", "not shown here");
  }
  const std::string mode = text.substr(begin + 1, end - begin - 1);
  if (mode != "never") return ok("huge_pages", "transparent, " + mode);
  return note("huge_pages", "never",
              "the CPU engine's weights lie in pages of 4 KiB: more misses "
              "when it looks addresses up",
              "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled");
}

Finding check_numa(const Machine& machine) {
  int nodes = 0;
  for (const std::string& name : machine.names_in("/sys/devices/system/node")) {
    if (name.rfind("node", 0) == 0 && name.find_first_of("0123456789") == 4) ++nodes;
  }
  if (nodes <= 1) return ok("numa", "one node");
  return note("numa", fmt::format("{} nodes", nodes),
              "weights may lie in another node's memory than the threads that read them",
              "numactl --cpunodebind=0 --membind=0 build/servelab run ...");
}

}  // namespace

Findings check_processor(const Subject& subject) {
  const Machine& machine = subject.machine;
  const CpuInfo info = cpu_info(machine);
  return {ok("model", info.model), check_cores(machine, info), check_instructions(info),
          check_governor(machine), check_turbo(machine),       check_smt(machine),
          check_load(machine),     check_steal(machine),       check_huge_pages(machine),
          check_numa(machine)};
}

}  // namespace servelab::doctor
