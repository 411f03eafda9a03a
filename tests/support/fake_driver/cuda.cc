// libcuda.so.1, as far as `servelab doctor` asks it.
#include <unistd.h>

#include "tests/support/fake_driver/fake_driver.h"

using servelab::test::fake_driver_is;

extern "C" {

int cuInit(unsigned) {
  if (fake_driver_is("hangs")) ::pause();
  if (fake_driver_is("crashes")) std::abort();
  constexpr int kUnknown = 999;
  return fake_driver_is("fails") ? kUnknown : 0;
}

int cuDriverGetVersion(int* version) {
  *version = 13010;
  return 0;
}

int cuDeviceGetCount(int* count) {
  *count = fake_driver_is("hides") ? 0 : 2;
  return 0;
}
}
