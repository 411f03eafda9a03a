#include "engine/workload/trace_cache.h"

#include <algorithm>
#include <utility>

namespace servelab {

TraceCache& TraceCache::of_process() {
  static TraceCache cache(std::size_t{1} << 26);  // 256 MiB of counts
  return cache;
}

std::shared_ptr<const FunctionTrace> TraceCache::get(const std::string& key,
                                                     const std::function<FunctionTrace()>& make) {
  const std::shared_ptr<Entry> entry = entry_of(key);
  const std::lock_guard lock(entry->mutex);
  if (entry->trace != nullptr) return entry->trace;
  const auto trace = std::make_shared<const FunctionTrace>(make());
  entry->trace = trace;
  keep_within_limit(entry, trace->counts.size() + trace->gap_cv.size());
  return trace;
}

std::shared_ptr<TraceCache::Entry> TraceCache::entry_of(const std::string& key) {
  const std::lock_guard lock(mutex_);
  auto at = std::find_if(entries_.begin(), entries_.end(),
                         [&](const std::shared_ptr<Entry>& entry) { return entry->key == key; });
  if (at == entries_.end()) {
    at = entries_.insert(entries_.begin(), std::make_shared<Entry>());
    (*at)->key = key;
  } else {
    entries_.splice(entries_.begin(), entries_, at);
  }
  return *at;
}

void TraceCache::keep_within_limit(const std::shared_ptr<Entry>& entry, std::size_t cells) {
  const std::lock_guard lock(mutex_);
  entry->cells = cells;
  std::size_t sum = 0;
  entries_.remove_if([&](const std::shared_ptr<Entry>& one) {
    if (one->cells > max_cells_ - sum) return true;
    sum += one->cells;
    return false;
  });
}

}  // namespace servelab
