#include "engine/cli/doctor/gpu_probe.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "engine/cli/doctor/child.h"

namespace servelab::doctor {
namespace {

constexpr const char* kCuda = "libcuda.so.1";
constexpr const char* kNvml = "libnvidia-ml.so.1";
constexpr const char* kNccl = "libnccl.so.2";

class Library {
 public:
  explicit Library(const char* name) : handle_(::dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) problem_ = ::dlerror();
  }
  explicit operator bool() const { return handle_ != nullptr; }
  const std::string& problem() const { return problem_; }

  // Calls a function that answers 0 for success; other answers when it is not there.
  template <class... Arguments>
  int call(const char* name, Arguments... arguments) const {
    constexpr int kNoFunction = -1;
    void* function = handle_ != nullptr ? ::dlsym(handle_, name) : nullptr;
    if (function == nullptr) return kNoFunction;
    return reinterpret_cast<int (*)(Arguments...)>(function)(arguments...);
  }

 private:
  void* handle_;  // stays loaded: the process ends soon
  std::string problem_;
};

// Of NVML's interface, which is stable; its header is not everywhere.
struct NvmlMemory {
  unsigned long long total, free, used;
};
constexpr int kSmClock = 1;
constexpr unsigned kNameBytes = 96;

GpuDevice device_of(const Library& nvml, void* handle) {
  GpuDevice device;
  char name[kNameBytes] = {};
  nvml.call("nvmlDeviceGetName", handle, name, kNameBytes - 1);
  device.name = name;
  nvml.call("nvmlDeviceGetCudaComputeCapability", handle, &device.major, &device.minor);
  NvmlMemory memory{};
  if (nvml.call("nvmlDeviceGetMemoryInfo", handle, &memory) == 0) {
    device.memory = static_cast<Bytes>(memory.total);
    device.free = static_cast<Bytes>(memory.free);
  }
  unsigned value = 0, pending = 0;
  if (nvml.call("nvmlDeviceGetMigMode", handle, &value, &pending) == 0) {
    device.mig = static_cast<int>(value);
  }
  if (nvml.call("nvmlDeviceGetPersistenceMode", handle, &value) == 0) {
    device.persistence = static_cast<int>(value);
  }
  if (nvml.call("nvmlDeviceGetClockInfo", handle, kSmClock, &value) == 0) {
    device.clock_mhz = static_cast<int>(value);
  }
  if (nvml.call("nvmlDeviceGetMaxClockInfo", handle, kSmClock, &value) == 0) {
    device.max_clock_mhz = static_cast<int>(value);
  }
  unsigned long long reasons = 0;
  if (nvml.call("nvmlDeviceGetCurrentClocksThrottleReasons", handle, &reasons) == 0) {
    device.throttled = static_cast<long>(reasons);
  }
  // Asked for none of them, it says how many there are, and that they did not fit.
  unsigned processes = 0;
  constexpr int kTooSmall = 7;
  const int answer = nvml.call("nvmlDeviceGetComputeRunningProcesses_v3", handle, &processes,
                               static_cast<void*>(nullptr));
  if (answer == 0 || answer == kTooSmall) device.processes = static_cast<int>(processes);
  return device;
}

void ask_nvml(GpuFacts* facts) {
  const Library nvml(kNvml);
  if (!nvml || nvml.call("nvmlInit_v2") != 0) return;
  char version[kNameBytes] = {};
  if (nvml.call("nvmlSystemGetDriverVersion", version, kNameBytes - 1) == 0) {
    facts->driver = version;
  }
  unsigned count = 0;
  nvml.call("nvmlDeviceGetCount_v2", &count);
  for (unsigned i = 0; i < count; ++i) {
    void* handle = nullptr;
    if (nvml.call("nvmlDeviceGetHandleByIndex_v2", i, &handle) != 0) continue;
    facts->devices.push_back(device_of(nvml, handle));
  }
}

GpuFacts ask_driver() {
  GpuFacts facts;
  facts.has_nccl = static_cast<bool>(Library(kNccl));
  const Library cuda(kCuda);
  facts.has_driver = static_cast<bool>(cuda);
  facts.reason = cuda.problem();
  if (!cuda) return facts;
  ask_nvml(&facts);
  cuda.call("cuDriverGetVersion", &facts.cuda_driver);
  facts.cuda_error = cuda.call("cuInit", 0u);
  if (facts.cuda_error == 0) cuda.call("cuDeviceGetCount", &facts.usable);
  return facts;
}

// The child's report.
std::string text_of(const GpuFacts& facts) {
  nlohmann::json json = {{"has_driver", facts.has_driver}, {"reason", facts.reason},
                         {"cuda_error", facts.cuda_error}, {"cuda_driver", facts.cuda_driver},
                         {"usable", facts.usable},         {"driver", facts.driver},
                         {"has_nccl", facts.has_nccl},     {"devices", nlohmann::json::array()}};
  for (const GpuDevice& device : facts.devices) {
    json["devices"].push_back({{"name", device.name},
                               {"major", device.major},
                               {"minor", device.minor},
                               {"memory", device.memory},
                               {"free", device.free},
                               {"mig", device.mig},
                               {"persistence", device.persistence},
                               {"clock_mhz", device.clock_mhz},
                               {"max_clock_mhz", device.max_clock_mhz},
                               {"throttled", device.throttled},
                               {"processes", device.processes}});
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Nothing is known from a report that ends early.
GpuFacts facts_of(const std::string& text) {
  GpuFacts facts;
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return facts;
  facts.has_driver = json.value("has_driver", false);
  facts.reason = json.value("reason", "");
  facts.cuda_error = json.value("cuda_error", 0);
  facts.cuda_driver = json.value("cuda_driver", 0);
  facts.usable = json.value("usable", 0);
  facts.driver = json.value("driver", "");
  facts.has_nccl = json.value("has_nccl", false);
  for (const auto& each : json.value("devices", nlohmann::json::array())) {
    GpuDevice device;
    device.name = each.value("name", "");
    device.major = each.value("major", 0);
    device.minor = each.value("minor", 0);
    device.memory = each.value("memory", Bytes{0});
    device.free = each.value("free", Bytes{0});
    device.mig = each.value("mig", -1);
    device.persistence = each.value("persistence", -1);
    device.clock_mhz = each.value("clock_mhz", -1);
    device.max_clock_mhz = each.value("max_clock_mhz", -1);
    device.throttled = each.value("throttled", -1L);
    device.processes = each.value("processes", -1);
    facts.devices.push_back(device);
  }
  return facts;
}

}  // namespace

GpuFacts probe_gpus(std::chrono::milliseconds limit) {
  const ChildResult child = run_child(
      [] {
        const std::string text = text_of(ask_driver());
        return ::write(STDOUT_FILENO, text.data(), text.size()) < 0 ? 1 : 0;
      },
      limit);
  GpuFacts facts = facts_of(child.text);
  facts.timed_out = child.timed_out;
  if (child.timed_out) {
    facts.has_driver = true;
    facts.reason = "no answer in " + std::to_string(limit.count()) + " ms";
  } else if (child.status >= 0 && WIFSIGNALED(child.status)) {
    facts.has_driver = true;
    facts.cuda_error = -1;
    facts.reason = "its libraries crash (signal " + std::to_string(WTERMSIG(child.status)) + ")";
  }
  return facts;
}

}  // namespace servelab::doctor
