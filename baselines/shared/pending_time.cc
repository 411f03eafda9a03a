#include "baselines/shared/pending_time.h"

namespace servelab {

double queueing_seconds(const ReplicaView& replica, const ExecutionHistory& history,
                        double merged_ratio) {
  const int batch = replica.limits().max_batch;
  double seconds = 0;
  for (const AdapterId id : replica.active_adapters()) {
    const int count = replica.requests_of(id).count;
    const int full = count / batch;
    seconds +=
        (full * merged_ratio + static_cast<double>(count % batch) / batch) * history.seconds(id);
  }
  return seconds;
}

double whole_batches(const ReplicaView& replica, double merged_ratio) {
  const int batch = replica.limits().max_batch;
  int full = 0;
  int rest = 0;
  for (const AdapterId id : replica.active_adapters()) {
    const int count = replica.requests_of(id).count;
    full += count / batch;
    rest += count % batch;
  }
  return full * merged_ratio + rest / batch;
}

double load_seconds(const ReplicaView& replica, AdapterId id) {
  if (id == kBaseModel || replica.adapters().residency(id) != Residency::kAbsent) return 0;
  return to_seconds(replica.load_time(id));
}

}  // namespace servelab
