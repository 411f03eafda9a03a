// The time that LoRA on the host adds to a step (CaraServe 4, Fig. 7 and 8). Wherever a layer has
// adapters, its input x crosses the link, cores of the host compute x * A * B, each for a chunk of
// a prompt's rows and one linear layer, and the result comes back. While they compute, the device
// computes x * W.
#ifndef SERVELAB_BACKEND_COST_HOST_LORA_COST_H_
#define SERVELAB_BACKEND_COST_HOST_LORA_COST_H_

#include <cstdint>

#include "engine/backend/cost/hardware.h"
#include "engine/serve/cost.h"

namespace servelab {

// One place of a layer where x leaves: q, k and v take the same x, gate and up another.
struct HostVisit {
  double targets = 0;           // linear layers that adapters change here
  double in = 0;                // columns of x, per device
  double out = 0;               // columns that come back: sum over the targets, per device
  double width = 0;             // in + out of the widest target: elements of A and B per rank
  std::int64_t device_out = 0;  // columns of the device's own GEMM meanwhile
};

// What a core takes for `rows` rows of one target: its weights from memory, then their products.
double host_core_us(const HostLoraConstants& host, double rows, double rank, double width);

// Us of one visit, of which `back` brings results to the device.
struct HostVisitTime {
  double added = 0;
  double back = 0;
};

// What one visit adds where the device's GEMM takes `device_us`. `devices` share the host's cores
// and have a link each. Copies stand in the step's own stream, so only what the host computes hides
// behind the device's GEMM.
//   chunks  = requests * ceil(mean rows / chunk_rows); a core takes one chunk of one target
//   compute = ceil(chunks * targets * devices / cores) * host_core_us at the largest rank
//   added   = there + max(0, signal + compute + signal - device) + back
//   there   fused: a pinned copy; synced: and the host's wait for its end, before it launches the
//           device's GEMM; pageable: that wait, and a call to pageable memory
HostVisitTime host_visit(const HardwareProfile& hw, const BatchShape& batch, HostCopy copy,
                         int devices, const HostVisit& visit, double device_us);

}  // namespace servelab

#endif  // SERVELAB_BACKEND_COST_HOST_LORA_COST_H_
