// The limits that control groups put on this process, version 1 or 2: a container's, mostly.
#ifndef SERVELAB_CLI_DOCTOR_CGROUP_H_
#define SERVELAB_CLI_DOCTOR_CGROUP_H_

#include <optional>

#include "engine/cli/doctor/machine.h"

namespace servelab::doctor {

struct CgroupLimits {
  std::optional<double> cores;  // processor time per time
  std::optional<Bytes> memory;
};

// The smallest of each, from this process's groups up to the roots that can be seen from here.
CgroupLimits cgroup_limits(const Machine& machine);

}  // namespace servelab::doctor

#endif  // SERVELAB_CLI_DOCTOR_CGROUP_H_
