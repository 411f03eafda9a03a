// Traces of single requests: arrival time and token counts, some with an adapter. Formats: CSV with
// t_s or t_ms, input_tokens, output_tokens [, adapter]; BurstGPT's CSV; Mooncake's JSON lines, of
// which ours is a superset (adapter). Length sets are the same tables without times.
#ifndef SERVELAB_WORKLOAD_REQUEST_TRACE_H_
#define SERVELAB_WORKLOAD_REQUEST_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/workload/data_files.h"

namespace servelab {

struct TraceRow {
  double at_s = 0;  // since the first row
  std::int32_t prompt_tokens = 0;
  std::int32_t output_tokens = 0;
  std::int32_t adapter = -1;  // -1: the trace names none
};

struct RequestTrace {
  WorkloadSource source;
  std::vector<TraceRow> rows;  // by time; in file order where times are equal or absent
  bool has_times = false;
  bool has_adapters = false;
  std::int64_t rows_without_output = 0;  // left out of `rows`
};

// What the rows are for: their times and lengths, in order, or their lengths alone.
enum class RowsFor { kReplay, kLengths };

// Reads a whole file. `prompt_column` names another column than input_tokens for the prompts.
// Rows without any output (BurstGPT's failed requests) are left out and counted; an empty prompt is
// kept as 0. Any other oddity is an error; so is a stamp before the last one's, for a replay.
RequestTrace read_request_trace(const std::string& path, const std::string& remedy, RowsFor use,
                                const std::string& prompt_column = "input_tokens");

}  // namespace servelab

#endif  // SERVELAB_WORKLOAD_REQUEST_TRACE_H_
