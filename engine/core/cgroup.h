// The limits that control groups put on this process, version 1 or 2: a container's, mostly.
#ifndef SERVELAB_CORE_CGROUP_H_
#define SERVELAB_CORE_CGROUP_H_

#include <optional>
#include <string>

#include "engine/core/units.h"

namespace servelab {

struct CgroupLimits {
  std::optional<double> cores;  // processor time per time
  std::optional<Bytes> memory;
  std::optional<Bytes> memory_left;  // of that: unused, or file cache that gives way
};

// The smallest of each, from this process's groups up to the roots that can be seen from here.
// `root` goes before /proc and /sys.
CgroupLimits cgroup_limits(const std::string& root = "");

}  // namespace servelab

#endif  // SERVELAB_CORE_CGROUP_H_
