// A GPU.
#include "tests/cuda_engine/engine_testing.h"

namespace servelab::test {

bool device_records() { return true; }

}  // namespace servelab::test
