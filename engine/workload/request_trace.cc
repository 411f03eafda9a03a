#include "engine/workload/request_trace.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/workload/csv.h"

namespace servelab {
namespace {

constexpr std::int64_t kMaxTokens = 100'000'000;
constexpr std::int64_t kMaxAdapters = 10'000'000;

template <class Reader>
std::int32_t tokens(std::int64_t value, const Reader& reader) {
  if (value > kMaxTokens) reader.fail("more than 100,000,000 tokens in one request");
  return static_cast<std::int32_t>(value);
}

// Keeps the row, unless it has no output.
template <class Reader>
void keep(const TraceRow& row, RowsFor use, const Reader& reader, RequestTrace* trace) {
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

// The columns of one CSV dialect.
struct Columns {
  std::size_t time = 0;
  double time_unit_s = 1;
  bool has_time = true;
  std::size_t prompt = 0;
  std::size_t output = 0;
  std::size_t adapter = 0;
  bool has_adapter = false;
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
  return columns;
}

RequestTrace read_csv(const std::string& path, const std::string& remedy, RowsFor use,
                      const std::string& prompt_column) {
  CsvReader csv(path, remedy);
  const Columns columns = find_columns(csv, prompt_column);
  RequestTrace trace;
  trace.has_times = columns.has_time;
  trace.has_adapters = columns.has_adapter;
  while (csv.next()) {
    TraceRow row;
    if (columns.has_time) row.at_s = csv.non_negative(columns.time) * columns.time_unit_s;
    row.prompt_tokens = tokens(csv.count(columns.prompt), csv);
    row.output_tokens = tokens(csv.count(columns.output), csv);
    if (columns.has_adapter) {
      const std::int64_t adapter = csv.count(columns.adapter);
      if (adapter >= kMaxAdapters) csv.fail("column 'adapter' is not an index");
      row.adapter = static_cast<std::int32_t>(adapter);
    }
    keep(row, use, csv, &trace);
  }
  if (trace.rows.empty()) csv.fail("the file has no usable rows");
  return trace;
}

std::int64_t json_count(const nlohmann::json& object, const char* key, const LineReader& lines) {
  const auto at = object.find(key);
  if (at == object.end()) lines.fail(std::string("'") + key + "' is missing");
  if (!at->is_number_integer() || at->get<std::int64_t>() < 0) {
    lines.fail(std::string("'") + key + "' must be a whole number, not negative");
  }
  return at->get<std::int64_t>();
}

RequestTrace read_json_lines(const std::string& path, const std::string& remedy, RowsFor use) {
  LineReader lines(path, remedy);
  RequestTrace trace;
  trace.has_times = true;
  std::string_view line;
  while (lines.next(&line)) {
    if (line.empty()) continue;
    const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
    if (!object.is_object()) lines.fail("not a JSON object");
    TraceRow row;
    const auto time = object.find("timestamp");
    if (time == object.end() || !time->is_number() || time->get<double>() < 0) {
      lines.fail("'timestamp' (milliseconds) must be a number, not negative");
    }
    row.at_s = time->get<double>() * 1e-3;
    row.prompt_tokens = tokens(json_count(object, "input_length", lines), lines);
    row.output_tokens = tokens(json_count(object, "output_length", lines), lines);
    if (object.contains("adapter")) {
      const std::int64_t adapter = json_count(object, "adapter", lines);
      if (adapter >= kMaxAdapters) lines.fail("'adapter' is not an index");
      row.adapter = static_cast<std::int32_t>(adapter);
      trace.has_adapters = true;
    }
    keep(row, use, lines, &trace);
  }
  if (trace.rows.empty()) lines.fail("the file has no usable rows");
  return trace;
}

}  // namespace

RequestTrace read_request_trace(const std::string& path, const std::string& remedy, RowsFor use,
                                const std::string& prompt_column) {
  RequestTrace trace = path.find(".jsonl") != std::string::npos
                           ? read_json_lines(path, remedy, use)
                           : read_csv(path, remedy, use, prompt_column);
  if (trace.has_times) {
    std::stable_sort(trace.rows.begin(), trace.rows.end(),
                     [](const TraceRow& a, const TraceRow& b) { return a.at_s < b.at_s; });
    const double first = trace.rows.front().at_s;
    for (TraceRow& row : trace.rows) row.at_s -= first;
  }
  return trace;
}

}  // namespace servelab
