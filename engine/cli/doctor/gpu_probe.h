// What the NVIDIA driver says, asked through its own libraries, which are loaded at run time: no
// CUDA Toolkit is needed to build this and no driver to run it.
#ifndef SERVELAB_CLI_DOCTOR_GPU_PROBE_H_
#define SERVELAB_CLI_DOCTOR_GPU_PROBE_H_

#include <chrono>
#include <string>
#include <vector>

#include "engine/core/units.h"

namespace servelab::doctor {

// What cannot be learnt is empty or negative.
struct GpuDevice {
  std::string name;
  int major = 0;  // compute capability
  int minor = 0;
  Bytes memory = 0;
  Bytes free = 0;
  int mig = -1;  // 1: split into instances
  int persistence = -1;
  int clock_mhz = -1;      // of the multiprocessors, now
  int max_clock_mhz = -1;  // at most
  long throttled = -1;     // reasons, as NVML's bits
  int processes = -1;      // that compute on it
};

struct GpuFacts {
  bool has_driver = false;  // libcuda.so.1 could be loaded
  std::string reason;       // why not, or why it does not answer
  bool timed_out = false;
  int cuda_error = 0;   // of cuInit(); 0 is success
  int cuda_driver = 0;  // the CUDA version that the driver can run: 13000 is 13.0
  int usable = 0;       // devices that a program may use (CUDA_VISIBLE_DEVICES counts)
  std::string driver;   // "580.95.05"
  bool has_nccl = false;
  std::vector<GpuDevice> devices;  // as NVML lists them; without NVML none
};

// Asks in a child process: a driver that crashes or hangs takes nothing with it.
GpuFacts probe_gpus(std::chrono::milliseconds limit);

}  // namespace servelab::doctor

#endif  // SERVELAB_CLI_DOCTOR_GPU_PROBE_H_
