// Everything a run leaves behind, in memory: one record per request, binned series, events, an
// inter-token-latency histogram and the decision log. The serving core writes it; engine/record
// turns it into HDF5. Appending never looks at earlier entries, so recording costs the same at the
// millionth request as at the first.
#ifndef SERVELAB_SERVE_RECORDER_H_
#define SERVELAB_SERVE_RECORDER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/digest.h"
#include "engine/core/ids.h"
#include "engine/core/units.h"
#include "engine/serve/cost.h"
#include "engine/serve/deployment.h"
#include "engine/serve/plan.h"
#include "engine/serve/timeline.h"

namespace servelab {

enum class RequestStatus : std::uint8_t {
  kUnfinished = 0,  // the run ended first
  kFinished = 1,
  kRejected = 2,  // refused by the policy or by admission; see RequestRecord::reject_reason
};

enum class RejectReason : std::uint8_t {
  kNone = 0,
  kTooLong = 1,        // prompt + output limit can never fit the replica's memory or context
  kPolicy = 2,         // the policy gave it up (early abort)
  kNoAdapterRoom = 3,  // its adapter can never fit
  kQueueFull = 4       // too many waited at its replica when it arrived
};

// Stamps are nanoseconds since the start of the run, kUnset where the thing never happened.
struct RequestRecord {
  TimeNs admitted = kUnset;       // entered a step for the first time
  TimeNs load_start = kUnset;     // its adapter was loading while it waited: from ...
  TimeNs load_end = kUnset;       // ... to
  TimeNs prefill_start = kUnset;  // start of the step with its first slice
  TimeNs first_token = kUnset;
  TimeNs last_token = kUnset;
  std::int32_t generated = 0;  // output tokens produced
  ReplicaId replica = kNoReplica;
  std::uint16_t preemptions = 0;
  std::uint16_t migrations = 0;
  RequestStatus status = RequestStatus::kUnfinished;
  RejectReason reject_reason = RejectReason::kNone;
  bool operator==(const RequestRecord&) const = default;
};

enum class EventCode : std::uint8_t {
  kLoad = 0,        // an adapter became resident; value = seconds it took
  kEvict = 1,       // an adapter left the device
  kMerge = 2,       // a step merged or unmerged weights; subject = adapter now merged (-1: none)
  kPreempt = 3,     // subject = request; value = tokens of context lost or swapped
  kReject = 4,      // subject = request
  kMigrate = 5,     // subject = request; value = destination replica
  kRebalance = 6,   // a cluster policy decided; subject = requests to migrate, -1: it found no
                    // decision; value = seconds that deciding took
  kWorkerLost = 7,  // workers of LoRA on the host were lost in a step; subject = how many; value =
                    // pieces of theirs that the engine computed
  kEnter = 8        // subject = request that a full replica had held back; value = seconds since it
                    // arrived
};
inline constexpr std::array<const char*, 9> kEventCodeNames = {
    "load", "evict", "merge", "preempt", "reject", "migrate", "rebalance", "worker-lost", "enter"};

struct EventRecord {
  TimeNs at = 0;
  EventCode code = EventCode::kLoad;
  ReplicaId replica{};
  std::int64_t subject = 0;
  double value = 0;
  bool operator==(const EventRecord&) const = default;
};

// Values of one replica over one bin of time. Counts and times are sums over the steps that ended
// in the bin; levels (running, waiting, ...) are as seen by the last step that ended in it.
struct SeriesBin {
  TimeNs start = 0;
  ReplicaId replica{};
  std::int64_t steps = 0;
  std::int64_t merged_steps = 0;
  std::int64_t batch_requests = 0;  // sum over steps of requests in the step
  std::int64_t prompt_tokens = 0;   // prefilled in the bin
  std::int64_t output_tokens = 0;   // sampled in the bin
  std::int32_t running = 0;
  std::int32_t waiting = 0;
  std::int32_t kv_blocks_used = 0;
  std::int32_t adapters_resident = 0;
  bool operator==(const SeriesBin&) const = default;
};

// One step, kept with RecorderOptions::steps, in the order in which steps ended. It was planned at
// end - timing.busy() - timing.load_wait.
struct StepRecord {
  TimeNs end = 0;
  StepTiming timing;
  ModelId model{};
  AdapterId merged = kBaseModel;  // in the weights while it ran
  std::int32_t requests = 0;
  std::int32_t adapters = 0;       // distinct ones that it used, on the device and on the host
  std::int32_t host_requests = 0;  // those whose LoRA the host computed
  std::int32_t prompt_tokens = 0;  // prefilled
  std::int32_t output_tokens = 0;  // sampled
  ReplicaId replica{};
  std::uint16_t slot = 0;  // tells steps apart that run at the same time
  Exec exec = Exec::kUnmerged;
};

// Time of one replica over the whole run, in ns, by where it went.
struct ReplicaTotals {
  std::int64_t steps = 0;
  std::int64_t merged_steps = 0;
  std::int64_t switches = 0;
  std::int64_t loads = 0;
  TimeNs dense = 0, attention = 0, lora = 0, collective = 0, host = 0;
  TimeNs switching = 0;   // merge and unmerge
  TimeNs load_wait = 0;   // steps held back by an adapter that was still loading
  TimeNs swap = 0;        // KV moved to or from host memory
  TimeNs busy = 0;        // sum of step durations
  TimeNs scheduling = 0;  // wall time of planning and bookkeeping, with measure_scheduling
  Bytes loaded_bytes = 0;
  std::int64_t kv_blocks_total = 0;
  std::int64_t kv_blocks_peak = 0;
  Bytes device_bytes = 0;    // that the engine may use
  Bytes weight_bytes = 0;    // of all models that are on it at once
  Bytes kv_block_bytes = 0;  // of one block of the pool
  bool operator==(const ReplicaTotals&) const = default;
};

// What the cluster and its policy did over the whole run.
struct ClusterTotals {
  // With ClusterSettings::max_waiting: arrivals that found their replica full, and were held back
  // at their client or turned away; -1 without a bound.
  std::int64_t held_back = -1;
  std::int64_t turned_away = -1;
  std::int64_t rebalances = 0;    // decisions made
  std::int64_t failures = 0;      // times that no decision could be found
  std::int64_t migrations = 0;    // requests that left a replica for another
  TimeNs decision_time = 0;       // as charged
  TimeNs decision_wall_time = 0;  // as measured, so never the same twice; not in the results
};

// Policy-defined values over time (dLoRA's thresholds, say), sampled once per bin.
struct GaugeSeries {
  std::string name;
  ReplicaId replica{};
  std::vector<TimeNs> at;
  std::vector<double> value;
  bool operator==(const GaugeSeries&) const = default;
};

// Histogram with 64 equal bins in each doubling from 1.024 us, 40 doublings (13 days): a bin is at
// most 1.6 % wide.
class LatencyHistogram {
 public:
  static constexpr int kPerDoubling = 64;
  static constexpr int kDoublings = 40;
  static constexpr std::size_t kBins = std::size_t{kPerDoubling} * kDoublings;
  static constexpr TimeNs kLowest = 1024;  // ns; anything shorter is counted in the first bin
  void add(TimeNs duration, std::int64_t count = 1) {
    counts_[static_cast<std::size_t>(bin(duration))] += count;
    sum_ += duration * count;
  }
  std::int64_t count() const;
  TimeNs sum() const { return sum_; }  // exact
  double quantile(double q) const;     // ns, by linear interpolation inside the bin; 0 when empty
  static int bin(TimeNs duration) {
    if (duration < kLowest) return 0;
    const int doubling = 63 - __builtin_clzll(static_cast<unsigned long long>(duration)) - 10;
    if (doubling >= kDoublings) return kPerDoubling * kDoublings - 1;
    return doubling * kPerDoubling + static_cast<int>((duration >> (doubling + 4)) & 63);
  }
  static double lower_edge(int bin);  // ns
  const std::array<std::int64_t, kBins>& counts() const { return counts_; }

 private:
  std::array<std::int64_t, kBins> counts_{};
  TimeNs sum_ = 0;
};

struct RecorderOptions {
  TimeNs bin = from_seconds(1);
  bool requests = true;  // keep requests and events in the point's file
  bool series = true;
  bool decision_text = false;       // keep the decision log as text, not only its hash
  bool token_times = false;         // keep every token's stamp (large)
  bool steps = false;               // keep every step (large)
  bool measure_scheduling = false;  // wall clock, so never the same twice
  bool keep_delivered = false;      // keep events and step timings for a replay
};

struct RunRecord {
  RecorderOptions options;
  Deployment deployment;
  std::vector<RequestRecord> requests;  // indexed by RequestId
  std::vector<SeriesBin> series;
  std::vector<GaugeSeries> gauges;
  std::vector<EventRecord> events;
  std::vector<StepRecord> step_log;  // with steps
  std::vector<ReplicaTotals> replicas;
  ClusterTotals cluster;
  LatencyHistogram itl;                     // gaps between consecutive tokens of a request
  std::vector<std::int64_t> token_offsets;  // with token_times: requests + 1 entries
  std::vector<TimeNs> token_times;          // with token_times: ragged, by request
  // The decision log, with decision_text: one line per plan and, where a replica goes on to make
  // that same plan, how often it did and when for the last time ("x5 until 0.031").
  std::string decisions;
  std::vector<std::string> decision_lines;  // its lines, until the run ends
  StreamHash decision_hash;                 // of all decisions, always
  std::vector<DeliveredEvent> delivered;    // with keep_delivered: every event of the run
  std::vector<StepTiming> step_timings;     // with keep_delivered: by order of kStepDone
  TimeNs arrival_lag_max = 0;               // a request entered this long after its scheduled time
  TimeNs end = 0;                           // stamp of the last event
  std::int64_t steps = 0;
  std::int64_t repeated_steps = 0;           // of those, by the replica itself; not in the results
  std::vector<std::string> invalid_reasons;  // empty: VALID
};

}  // namespace servelab

#endif  // SERVELAB_SERVE_RECORDER_H_
