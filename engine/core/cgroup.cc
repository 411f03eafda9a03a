#include "engine/core/cgroup.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <vector>

namespace servelab {
namespace {

constexpr const char* kMount = "/sys/fs/cgroup";
constexpr Bytes kUnlimited = Bytes{1} << 60;  // version 1 says "none" by a number near 2^63

template <class Value>
void lower(Value value, std::optional<Value>* limit) {
  if (!*limit || value < **limit) *limit = value;
}

// The number that a file begins with; none where it says "max", or is not there.
std::optional<Bytes> number_in(const std::string& path) {
  std::ifstream file(path);
  Bytes value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// Of a file of lines "key number".
Bytes value_of(const std::string& path, const std::string& wanted) {
  std::ifstream file(path);
  std::string key;
  for (Bytes value = 0; file >> key >> value;) {
    if (key == wanted) return value;
  }
  return 0;
}

// How a version names the files of a group's memory.
struct MemoryFiles {
  const char* limit;
  const char* used;
  const char* cache;  // in memory.stat: file cache that gives way to others
};
constexpr MemoryFiles kFilesV1 = {"/memory.limit_in_bytes", "/memory.usage_in_bytes",
                                  "total_inactive_file"};
constexpr MemoryFiles kFilesV2 = {"/memory.max", "/memory.current", "inactive_file"};

void look_at_memory(const std::string& folder, const MemoryFiles& files, CgroupLimits* limits) {
  const std::optional<Bytes> limit = number_in(folder + files.limit);
  if (!limit || *limit < 0 || *limit >= kUnlimited) return;
  lower(*limit, &limits->memory);
  const Bytes used =
      number_in(folder + files.used).value_or(0) - value_of(folder + "/memory.stat", files.cache);
  lower(std::clamp(*limit - used, Bytes{0}, *limit), &limits->memory_left);
}

void look_at_v2(const std::string& folder, CgroupLimits* limits) {
  std::ifstream file(folder + "/cpu.max");  // "max 100000" without a limit
  double quota = 0, period = 0;
  if (file >> quota >> period && period > 0) lower(quota / period, &limits->cores);
  look_at_memory(folder, kFilesV2, limits);
}

void look_at_v1_processor(const std::string& folder, CgroupLimits* limits) {
  const auto quota = number_in(folder + "/cpu.cfs_quota_us");  // -1 without a limit
  const auto period = number_in(folder + "/cpu.cfs_period_us");
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

CgroupLimits cgroup_limits(const std::string& root) {
  CgroupLimits limits;
  const std::string mount = root + kMount;
  std::ifstream groups(root + "/proc/self/cgroup");  // "4:memory:/a/b", "0::/a/b"
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    for (const std::string& path : upwards(line.substr(second + 1))) {
      if (controllers.empty()) {
        look_at_v2(mount + path, &limits);
        look_at_v2(mount + "/unified" + path, &limits);
      } else if (has_controller(controllers, "cpu")) {
        look_at_v1_processor(mount + "/cpu" + path, &limits);
        look_at_v1_processor(mount + "/cpu,cpuacct" + path, &limits);
      } else if (has_controller(controllers, "memory")) {
        look_at_memory(mount + "/memory" + path, kFilesV1, &limits);
      }
    }
  }
  return limits;
}

}  // namespace servelab
