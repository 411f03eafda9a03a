// Parsed and rebuilt traces, kept for the life of the process: the points of an experiment share
// them. Safe for several threads; two that want the same trace at once build it once.
#ifndef SERVELAB_WORKLOAD_TRACE_CACHE_H_
#define SERVELAB_WORKLOAD_TRACE_CACHE_H_

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "engine/workload/function_trace.h"

namespace servelab {

class TraceCache {
 public:
  // Traces above `max_cells` counts, alone or together, are not kept.
  explicit TraceCache(std::size_t max_cells) : max_cells_(max_cells) {}

  // `key` must name everything that `make` depends on: a file by its content, not by its path. What
  // `make` throws passes through, and nothing is kept.
  std::shared_ptr<const FunctionTrace> get(const std::string& key,
                                           const std::function<FunctionTrace()>& make);

  static TraceCache& of_process();

 private:
  struct Entry {
    std::string key;
    std::mutex mutex;  // held while the trace is made
    std::shared_ptr<const FunctionTrace> trace;
    std::size_t cells = 0;
  };

  std::shared_ptr<Entry> entry_of(const std::string& key);
  void keep_within_limit(const std::shared_ptr<Entry>& entry, std::size_t cells);

  const std::size_t max_cells_;
  std::mutex mutex_;                           // of the list and every entry's `cells`
  std::list<std::shared_ptr<Entry>> entries_;  // last used first; few
};

}  // namespace servelab

#endif  // SERVELAB_WORKLOAD_TRACE_CACHE_H_
