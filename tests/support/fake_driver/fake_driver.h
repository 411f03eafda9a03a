// Stand-ins for the NVIDIA driver's libraries: two devices, or what $SERVELAB_FAKE_DRIVER says: one
// that hangs, one that crashes, one without devices.
#ifndef SERVELAB_TESTS_SUPPORT_FAKE_DRIVER_FAKE_DRIVER_H_
#define SERVELAB_TESTS_SUPPORT_FAKE_DRIVER_FAKE_DRIVER_H_

#include <cstdlib>
#include <cstring>

namespace servelab::test {

inline bool fake_driver_is(const char* wanted) {
  const char* mode = std::getenv("SERVELAB_FAKE_DRIVER");
  return mode != nullptr && std::strcmp(mode, wanted) == 0;
}

}  // namespace servelab::test

#endif  // SERVELAB_TESTS_SUPPORT_FAKE_DRIVER_FAKE_DRIVER_H_
