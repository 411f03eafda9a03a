#include "engine/workload/request_trace.h"

#include <algorithm>

#include "engine/workload/csv.h"
#include "engine/workload/mooncake_trace.h"
#include "engine/workload/trace_rows.h"

namespace servelab {
namespace {

// The columns of one CSV dialect.
struct Columns {
  std::size_t time = 0;
  double time_unit_s = 1;
  bool has_time = true;
  std::size_t prompt = 0;
  std::size_t output = 0;
  std::size_t adapter = 0;
  bool has_adapter = false;
  std::size_t draw = 0;
  bool has_draw = false;
};

Columns find_columns(const CsvReader& csv, const std::string& prompt_column) {
  Columns columns;
  if (csv.has_column("Request tokens")) {  // BurstGPT
    columns.time = csv.column("Timestamp");
    columns.prompt = csv.column("Request tokens");
    columns.output = csv.column("Response tokens");
    return columns;
  }
  if (csv.has_column("t_ms")) {
    columns.time = csv.column("t_ms");
    columns.time_unit_s = 1e-3;
  } else if (csv.has_column("t_s")) {
    columns.time = csv.column("t_s");
  } else {
    columns.has_time = false;
  }
  columns.prompt = csv.column(prompt_column);
  columns.output = csv.column("output_tokens");
  columns.has_adapter = csv.has_column("adapter");
  if (columns.has_adapter) columns.adapter = csv.column("adapter");
  columns.has_draw = csv.has_column("draw");
  if (columns.has_draw) columns.draw = csv.column("draw");
  return columns;
}

RequestTrace read_csv(const std::string& path, const std::string& remedy, RowsFor use,
                      const std::string& prompt_column) {
  CsvReader csv(path, remedy);
  const Columns columns = find_columns(csv, prompt_column);
  RequestTrace trace;
  trace.has_times = columns.has_time;
  while (csv.next()) {
    TraceRow row;
    if (columns.has_time) row.at_s = csv.non_negative(columns.time) * columns.time_unit_s;
    row.prompt_tokens = trace_tokens(csv.count(columns.prompt), csv);
    row.output_tokens = trace_tokens(csv.count(columns.output), csv);
    if (columns.has_adapter) {
      const std::int64_t adapter = csv.count(columns.adapter);
      if (adapter >= kMaxTraceAdapters) csv.fail("column 'adapter' is not an index");
      row.adapter = static_cast<std::int32_t>(adapter);
    }
    if (columns.has_draw) {
      row.draw = csv.non_negative(columns.draw);
      if (row.draw >= 1) csv.fail("column 'draw' is not below 1");
    }
    keep_trace_row(row, use, csv, &trace);
  }
  if (trace.rows.empty()) csv.fail("the file has no usable rows");
  return trace;
}

}  // namespace

RequestTrace read_request_trace(const std::string& path, const std::string& remedy, RowsFor use,
                                const std::string& prompt_column) {
  RequestTrace trace = path.find(".jsonl") != std::string::npos
                           ? read_mooncake_trace(path, remedy, use)
                           : read_csv(path, remedy, use, prompt_column);
  if (trace.has_times) {
    std::stable_sort(trace.rows.begin(), trace.rows.end(),
                     [](const TraceRow& a, const TraceRow& b) { return a.at_s < b.at_s; });
    trace.first_s = trace.rows.front().at_s;
    for (TraceRow& row : trace.rows) row.at_s -= trace.first_s;
  }
  return trace;
}

}  // namespace servelab
