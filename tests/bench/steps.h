// One step of an engine, again and again: what the engines' benchmarks time, with the bytes and the
// floating-point operations that no engine can do without.
#ifndef SERVELAB_TESTS_BENCH_STEPS_H_
#define SERVELAB_TESTS_BENCH_STEPS_H_

#include <memory>
#include <vector>

#include "engine/backend/device/device.h"

namespace servelab {

struct StepCase {
  const char* name;
  int batch;
  int context;   // tokens of each sequence before the step
  int tokens;    // of each sequence in it
  int adapters;  // distinct ones; 0: base model
  double asked;  // of the share, or of the ratio, that the benchmark prints
};

inline constexpr int kStepBlockTokens = 16;

// Blocks of the KV cache that a case needs.
std::int64_t blocks_of(const StepCase& c);

class StepLoad {
 public:
  // Adapters on q, k, v and o, random, already on the device when this returns.
  StepLoad(std::unique_ptr<Device> device, int adapters, int rank);

  Device& device() { return *device_; }
  StepParts run(const StepCase& c);
  // Weights but the embedding, keys and values, and the adapters, each once.
  double bytes(const StepCase& c) const;
  double flops(const StepCase& c) const;

 private:
  const std::unique_ptr<Device> device_;
  const Bytes adapter_bytes_;  // of one
  DeviceResult result_;
};

double median(std::vector<double> values);

}  // namespace servelab

#endif  // SERVELAB_TESTS_BENCH_STEPS_H_
