#include "engine/cli/doctor/cgroup.h"

#include <cstdio>
#include <sstream>

namespace servelab::doctor {
namespace {

constexpr const char* kMount = "/sys/fs/cgroup";
constexpr Bytes kUnlimited = Bytes{1} << 60;  // version 1 says "none" by a number near 2^63

template <class Value>
void lower(Value value, std::optional<Value>* limit) {
  if (!*limit || value < **limit) *limit = value;
}

void lower_memory(const Machine& machine, const std::string& file, CgroupLimits* limits) {
  const std::optional<Bytes> limit = machine.number(file);  // "max" in version 2 is none
  if (limit && *limit < kUnlimited) lower(*limit, &limits->memory);
}

void look_at_v2(const Machine& machine, const std::string& folder, CgroupLimits* limits) {
  double quota = 0, period = 0;
  const std::string text = machine.line(folder + "/cpu.max");  // "max 100000" without a limit
  if (std::sscanf(text.c_str(), "%lf %lf", &quota, &period) == 2 && period > 0) {
    lower(quota / period, &limits->cores);
  }
  lower_memory(machine, folder + "/memory.max", limits);
}

void look_at_v1_processor(const Machine& machine, const std::string& folder, CgroupLimits* limits) {
  const auto quota = machine.number(folder + "/cpu.cfs_quota_us");  // -1 without a limit
  const auto period = machine.number(folder + "/cpu.cfs_period_us");
  if (quota && period && *quota > 0 && *period > 0) {
    lower(static_cast<double>(*quota) / static_cast<double>(*period), &limits->cores);
  }
}

// "/a/b", "/a" and "": a group and those around it. Inside a container the path may be the host's,
// and only the root is there.
std::vector<std::string> upwards(std::string path) {
  std::vector<std::string> paths;
  while (path.size() > 1) {
    paths.push_back(path);
    path.erase(path.rfind('/'));
  }
  paths.emplace_back();
  return paths;
}

bool has_controller(const std::string& controllers, const std::string& name) {
  return ("," + controllers + ",").find("," + name + ",") != std::string::npos;
}

}  // namespace

CgroupLimits cgroup_limits(const Machine& machine) {
  CgroupLimits limits;
  std::istringstream groups(machine.text("/proc/self/cgroup"));  // "4:memory:/a/b", "0::/a/b"
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    for (const std::string& path : upwards(line.substr(second + 1))) {
      const std::string mount = kMount;
      if (controllers.empty()) {
        look_at_v2(machine, mount + path, &limits);
        look_at_v2(machine, mount + "/unified" + path, &limits);
      } else if (has_controller(controllers, "cpu")) {
        look_at_v1_processor(machine, mount + "/cpu" + path, &limits);
        look_at_v1_processor(machine, mount + "/cpu,cpuacct" + path, &limits);
      } else if (has_controller(controllers, "memory")) {
        lower_memory(machine, mount + "/memory" + path + "/memory.limit_in_bytes", &limits);
      }
    }
  }
  return limits;
}

}  // namespace servelab::doctor
