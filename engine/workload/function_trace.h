// Traces of many functions, each with its invocations counted per bin of time: Azure Functions 2019
// (counts per minute), Azure Functions 2021 (rebuilt from published statistics), CaraServe's
// aggregate per second, plain popularity tables, and embedded statistics where no file is at hand.
#ifndef SERVELAB_WORKLOAD_FUNCTION_TRACE_H_
#define SERVELAB_WORKLOAD_FUNCTION_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/core/check.h"
#include "engine/workload/data_files.h"

namespace servelab {

struct FunctionTrace {
  WorkloadSource source;
  double bin_s = 60;
  std::size_t bins = 0;
  std::size_t functions = 0;
  std::vector<float> counts;  // [function][bin]
  // ServeGen only, [function][bin]: coefficient of variation of the gaps in that bin; positive for
  // Gamma gaps, negative for Weibull ones.
  std::vector<float> gap_cv;

  std::span<const float> of(std::size_t function) const {
    return std::span<const float>(counts).subspan(function * bins, bins);
  }
  double total(std::size_t function) const;
};

struct FunctionTraceRequest {
  std::string name;      // "maf1", "maf2", "caraserve-512", "gentd26", ...
  std::string role;      // for the source record
  std::string data_dir;  // may be empty
  bool embedded_allowed = true;
  double bin_s = 60;  // wanted bin: a multiple of the trace's own, or the whole window
  double start_s = 0;
  double window_s = 0;        // 0: to the end of the trace
  std::size_t functions = 0;  // 0: as many as the trace has
  bool shares_only = false;   // only totals are wanted: a real trace may be resampled
  SourceMark mark;            // of the setting that names the trace, for messages
};

// The whole trace is parsed or built once per process and content (trace_cache.h), by any thread.
// Throws SpecError: unknown name, file missing and no stand-in allowed, corrupt file, a window
// outside the trace or with no invocation in it.
FunctionTrace load_function_trace(const FunctionTraceRequest& request);

// The adapter (or model) of each function, by dLoRA's rule (7.1, and map_stride in the artifact):
// functions in file order or, with `sort`, by descending invocations (ties keep file order); runs
// of `skewness` functions go to adapter 0, 1, ..., and around again.
std::vector<std::uint32_t> map_functions(const FunctionTrace& trace, std::size_t items,
                                         std::size_t skewness, bool sort);

// The share of each of `n` items along a popularity curve, most popular first; sums to 1.
std::vector<double> resample_shares(const std::vector<double>& counts, std::size_t n);
std::vector<double> embedded_share_curve(const std::string& name, std::size_t n);

// Refuses a table of counts that would not fit into memory.
void check_trace_size(std::size_t functions, std::size_t bins);

// Loaders and models behind load_function_trace; each returns all of the trace.
FunctionTrace load_minute_table(const std::string& path, const std::string& remedy, double bin_s);
FunctionTrace load_maf2_statistics(const std::string& totals_path, const std::string& remedy,
                                   double bin_s);
std::string maf2_gaps_path(const std::string& totals_path);  // the second file that it reads
FunctionTrace load_popularity_table(const std::string& path, const std::string& remedy);
FunctionTrace load_client_table(const std::string& path, const std::string& remedy,
                                const std::string& model, double bin_s);
FunctionTrace load_rate_table(const std::string& path, const std::string& remedy, double bin_s);
FunctionTrace model_maf1(std::size_t functions, double bin_s);
FunctionTrace model_maf2(std::size_t functions, double bin_s);

}  // namespace servelab

#endif  // SERVELAB_WORKLOAD_FUNCTION_TRACE_H_
