// What the readers of request traces share: limits, and which rows are kept. `Reader` is a
// CsvReader or a LineReader: it fails with the file and the line.
#ifndef SERVELAB_WORKLOAD_TRACE_ROWS_H_
#define SERVELAB_WORKLOAD_TRACE_ROWS_H_

#include <cstdint>

#include "engine/workload/request_trace.h"

namespace servelab {

inline constexpr std::int64_t kMaxTraceTokens = 100'000'000;
inline constexpr std::int64_t kMaxTraceAdapters = 10'000'000;

template <class Reader>
std::int32_t trace_tokens(std::int64_t value, const Reader& reader) {
  if (value > kMaxTraceTokens) reader.fail("more than 100,000,000 tokens in one request");
  return static_cast<std::int32_t>(value);
}

// Keeps the row, unless it has no output.
template <class Reader>
void keep_trace_row(const TraceRow& row, RowsFor use, const Reader& reader, RequestTrace* trace) {
  if (row.output_tokens == 0) {
    ++trace->rows_without_output;
    return;
  }
  const bool is_late = !trace->rows.empty() && row.at_s < trace->rows.back().at_s;
  if (use == RowsFor::kReplay && trace->has_times && is_late) {
    reader.fail("this request comes before the one above it; sort the file by time");
  }
  trace->rows.push_back(row);
}

}  // namespace servelab

#endif  // SERVELAB_WORKLOAD_TRACE_ROWS_H_
