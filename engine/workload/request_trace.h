// Traces of single requests: arrival time and token counts, some with an adapter. Formats: CSV with
// t_s or t_ms, input_tokens, output_tokens [, adapter or draw]; BurstGPT's CSV; Mooncake's JSON
// lines and our superset of them (mooncake_trace.h). Length sets are the same tables without times.
#ifndef SERVELAB_WORKLOAD_REQUEST_TRACE_H_
#define SERVELAB_WORKLOAD_REQUEST_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/serve/request.h"
#include "engine/workload/data_files.h"

namespace servelab {

inline constexpr std::int32_t kRowOfBaseModel = -2;  // TraceRow::adapter: none is to be used

struct TraceRow {
  double at_s = 0;  // since the first row
  std::int32_t prompt_tokens = 0;
  std::int32_t output_tokens = 0;
  std::int32_t adapter = -1;      // -1: the trace does not say
  double draw = -1;               // in [0, 1): of the adapter, by popularity; -1: the run's own
  std::int32_t base_model = -1;   // -1: the trace does not say
  std::int32_t output_limit = 0;  // the client's max_tokens; 0: the trace does not say
  std::int32_t session = -1;      // -1: none
  RequestObjective objective = {};
};

struct RequestTrace {
  WorkloadSource source;
  std::vector<TraceRow> rows;  // by time; in file order where times are equal or absent
  bool has_times = false;
  bool has_sessions = false;
  bool has_objectives = false;
  double first_s = 0;                       // stamp of the first row, as the file has it
  std::vector<std::int32_t> adapter_ranks;  // by adapter; 0, or beyond its end: not said
  std::int32_t base_models = 0;             // that the rows use; 0: none is named
  std::vector<std::string> unused_keys;     // of JSON lines, sorted
  std::int64_t rows_without_output = 0;     // left out of `rows`
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
