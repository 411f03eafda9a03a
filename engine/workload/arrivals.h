// When requests arrive, and for the processes that run per adapter or follow a trace, for which
// adapter. All processes draw from the stream "arrivals", with one sub-stream per adapter.
#ifndef SERVELAB_WORKLOAD_ARRIVALS_H_
#define SERVELAB_WORKLOAD_ARRIVALS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/config_node.h"
#include "engine/core/units.h"
#include "engine/workload/data_files.h"
#include "engine/workload/request_trace.h"
#include "engine/workload/settings.h"

namespace servelab {

inline constexpr std::uint32_t kAnyItem = UINT32_MAX;       // popularity decides
inline constexpr std::uint32_t kBaseItem = UINT32_MAX - 1;  // the base model, without an adapter

struct Arrival {
  TimeNs at = 0;
  std::uint32_t item = kAnyItem;  // adapter, or model where there are no adapters
  std::uint32_t row = 0;          // of the replayed trace
};

struct ArrivalInputs {
  const WorkloadSettings* settings = nullptr;
  const ConfigNode* section = nullptr;  // the arrivals map, for places in messages
  std::uint64_t seed = 0;
  std::string data_dir;
  const std::vector<double>* shares = nullptr;  // of the items; sums to 1
  double weight_sum = 0;                        // the rate where `rate` is unset
  bool first_only = false;  // of those that are drawn, the first arrival is enough
};

struct ArrivalPlan {
  std::vector<Arrival> arrivals;  // by time; equal stamps by item, then in order of generation
  RequestTrace replayed;          // of process replay
  std::vector<WorkloadSource> sources;
  std::vector<std::string> notes;  // one line each
  double rate_per_s = 0;           // of the generated processes; 0: closed, or a trace's own
  // Of the items over the whole trace, where the process takes them from one; else empty.
  std::vector<double> shares = {};
};

// Throws SpecError for settings that cannot be met.
ArrivalPlan generate_arrivals(const ArrivalInputs& inputs);

// SpecError at `key` of the arrivals, or at their map where the spec lacks the key.
[[noreturn]] void fail_at(const ArrivalInputs& inputs, const std::string& key,
                          const std::string& what);

// Records the rate that a trace came to where the spec sets none.
void note_own_rate(double requests_per_s, ArrivalPlan* plan);

// Whether this process itself says which adapter each request is for, from a trace.
bool follows_trace_adapters(const ArrivalSettings& settings);

}  // namespace servelab

#endif  // SERVELAB_WORKLOAD_ARRIVALS_H_
