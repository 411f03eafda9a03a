// Builds the adapters and requests of an experiment from the `workload:` section of its spec. The
// same settings, seed and data give the same workload, byte for byte, on every platform; each
// dimension (arrivals, adapters, lengths, ranks, ...) draws from a random stream of its own.
#ifndef SERVELAB_WORKLOAD_WORKLOAD_H_
#define SERVELAB_WORKLOAD_WORKLOAD_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/core/config_node.h"
#include "engine/serve/request.h"
#include "engine/workload/data_files.h"

namespace servelab {

struct WorkloadContext {
  std::uint64_t seed = 0;
  std::string data_dir;                          // folder of the real traces; empty: there are none
  int max_context_tokens = 0;                    // prompt and output together; 0: no limit
  std::function<Bytes(int rank)> adapter_bytes;  // size of an adapter; unset: 0
  // False: what the settings lead to is wanted (BuiltWorkload::effective, `sources`), and requests
  // that need not be drawn for it are left out.
  bool requests = true;
};

struct BuiltWorkload {
  Workload workload;
  ConfigNode effective;                 // every setting with its default, limits resolved
  std::vector<WorkloadSource> sources;  // what was really used
  // What a reader of the result should know, one line each. They may depend on the seed ("37 of 400
  // requests were cut to the context of 4096 tokens"), unlike `effective` and `sources`.
  std::vector<std::string> notes = {};
};

// `settings` is a map (or null: all defaults, which lack a bound and so are refused). Throws
// SpecError with file, line and remedy. A list `notes`, as a result may record it beside the
// effective settings, is ignored.
BuiltWorkload build_workload(const ConfigNode& settings, const WorkloadContext& context);

}  // namespace servelab

#endif  // SERVELAB_WORKLOAD_WORKLOAD_H_
