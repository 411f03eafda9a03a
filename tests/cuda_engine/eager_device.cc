// The real kernels, executed on the host as soon as they are launched (tests/kernels/cuda_host):
// streams cannot be lazy then, and a graph would record nothing.
#include "tests/cuda_engine/engine_testing.h"
#include "tests/cuda_engine/host_device.h"

namespace servelab::test {
namespace {

[[maybe_unused]] const bool eager = [] {
  host_device::set_lazy(false);
  return true;
}();

}  // namespace

bool device_records() { return false; }

}  // namespace servelab::test
