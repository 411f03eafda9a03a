// libnvidia-ml.so.1, as far as `servelab doctor` asks it: an H100 at rest, and an A10 that others
// use, without persistence.
#include <cstdio>

#include "tests/support/fake_driver/fake_driver.h"

namespace {

char devices[2];

bool is_second(const void* device) { return device == devices + 1; }

}  // namespace

extern "C" {

int nvmlInit_v2() { return 0; }

int nvmlSystemGetDriverVersion(char* version, unsigned size) {
  std::snprintf(version, size, "999.01");
  return 0;
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = devices + index;
  return 0;
}

int nvmlDeviceGetName(void* device, char* name, unsigned size) {
  std::snprintf(name, size, "%s", is_second(device) ? "NVIDIA A10" : "NVIDIA H100");
  return 0;
}

int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
  *major = is_second(device) ? 8 : 9;
  *minor = is_second(device) ? 6 : 0;
  return 0;
}

int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* total_free_used) {
  constexpr unsigned long long kGiB = 1ull << 30;
  total_free_used[0] = (is_second(device) ? 24 : 80) * kGiB;
  total_free_used[2] = kGiB;
  total_free_used[1] = total_free_used[0] - kGiB;
  return 0;
}

int nvmlDeviceGetMigMode(void* device, unsigned* current, unsigned* pending) {
  constexpr int kNotSupported = 3;
  *current = *pending = 0;
  return is_second(device) ? kNotSupported : 0;
}

int nvmlDeviceGetPersistenceMode(void* device, unsigned* mode) {
  *mode = is_second(device) ? 0 : 1;
  return 0;
}

int nvmlDeviceGetClockInfo(void*, int, unsigned* mhz) {
  *mhz = 345;
  return 0;
}

int nvmlDeviceGetMaxClockInfo(void*, int, unsigned* mhz) {
  *mhz = 1980;
  return 0;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
  *reasons = 1;  // idle
  return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, void*) {
  constexpr int kTooSmall = 7;
  *count = is_second(device) ? 3 : 0;
  return is_second(device) ? kTooSmall : 0;
}
}
