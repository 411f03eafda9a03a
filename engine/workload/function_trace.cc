#include "engine/workload/function_trace.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <memory>
#include <numeric>

#include "engine/core/digest.h"
#include "engine/core/portable_math.h"
#include "engine/workload/embedded_stats.h"
#include "engine/workload/trace_cache.h"

namespace servelab {
namespace {

constexpr std::size_t kMaxCells = std::size_t{1} << 27;  // 512 MiB of counts

struct CurvePoint {
  double items;
  double calls;
};

// Calls of the top fraction x of the items. Between two points the curve is a power of x, which
// keeps it increasing and concave; below the first point it continues the first power.
double curve_at(const std::vector<CurvePoint>& curve, double x) {
  if (x >= 1) return 1;
  if (x <= 0) return 0;
  auto upper = std::lower_bound(curve.begin(), curve.end(), x,
                                [](const CurvePoint& p, double at) { return p.items < at; });
  if (upper != curve.end() && upper->items == x) return upper->calls;
  if (upper == curve.begin()) ++upper;
  if (upper == curve.end()) return 1;
  const CurvePoint& a = *(upper - 1);
  const CurvePoint& b = *upper;
  const double power = portable::log(b.calls / a.calls) / portable::log(b.items / a.items);
  return std::min(1.0, a.calls * portable::pow(x / a.items, std::min(1.0, power)));
}

std::vector<double> shares_along(const std::vector<CurvePoint>& curve, std::size_t n) {
  std::vector<double> shares(n);
  double before = 0;
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double here = curve_at(curve, static_cast<double>(i + 1) / static_cast<double>(n));
    shares[i] = std::max(0.0, here - before);
    before = std::max(before, here);
    sum += shares[i];
  }
  for (double& share : shares) share /= sum;
  std::sort(shares.begin(), shares.end(), std::greater<>());
  return shares;
}

std::string without_like(const std::string& name) {
  const std::string ending = "-like";
  if (name.size() > ending.size() &&
      name.compare(name.size() - ending.size(), ending.size(), ending) == 0) {
    return name.substr(0, name.size() - ending.size());
  }
  return name;
}

std::vector<std::string> known_names() {
  auto names = data_file_names(
      {TraceKind::kFunctions, TraceKind::kPopularity, TraceKind::kRate, TraceKind::kClients});
  for (const char* name : {"maf1-like", "maf2-like", "caraserve-like", "gentd26-like"}) {
    names.emplace_back(name);
  }
  return names;
}

FunctionTrace from_shares(const std::vector<double>& shares) {
  FunctionTrace trace;
  trace.bins = 1;
  trace.bin_s = 0;  // no times
  trace.functions = shares.size();
  trace.counts.assign(shares.begin(), shares.end());
  return trace;
}

std::string exact(double value) { return std::to_string(std::bit_cast<std::uint64_t>(value)); }

FunctionTrace parse_file(const DataFile& file, const std::string& path, double bin_s) {
  const std::string remedy = remedy_for(file);
  switch (file.kind) {
    case TraceKind::kPopularity:
      return load_popularity_table(path, remedy);
    case TraceKind::kRate:
      return load_rate_table(path, remedy, bin_s);
    case TraceKind::kClients:
      return load_client_table(path, remedy, file.name.substr(std::string("servegen-").size()),
                               bin_s);
    default:
      return file.name == "maf2" ? load_maf2_statistics(path, remedy, bin_s)
                                 : load_minute_table(path, remedy, bin_s);
  }
}

std::shared_ptr<const FunctionTrace> load_file(const DataFile& file, const std::string& path,
                                               const FunctionTraceRequest& request,
                                               WorkloadSource* source) {
  *source = source_of(request.role, request.name, path, request.data_dir, file.licence);
  std::string key = file.name + " " + exact(request.bin_s) + " " + source->sha256;
  if (file.name == "maf2") {
    const std::string second = maf2_gaps_path(path);
    if (std::filesystem::exists(second)) key += " " + sha256_file_hex(second);
  }
  return TraceCache::of_process().get(key, [&] { return parse_file(file, path, request.bin_s); });
}

FunctionTrace model_of(const std::string& family, const std::string& base,
                       const FunctionTraceRequest& request) {
  if (family == "maf1") return model_maf1(request.functions, request.bin_s);
  if (family == "maf2") return model_maf2(request.functions, request.bin_s);
  std::size_t n = request.functions;
  if (n == 0 && base.size() > family.size()) n = std::stoul(base.substr(family.size() + 1));
  return from_shares(embedded_share_curve(family, n));
}

std::shared_ptr<const FunctionTrace> build_embedded(const std::string& base,
                                                    const FunctionTraceRequest& request,
                                                    WorkloadSource* source) {
  std::string family = base;
  for (const char* name : {"maf1", "maf2", "caraserve"}) {
    if (base.rfind(name, 0) == 0) family = name;
  }
  *source = embedded_source(request.role, family + "-like");
  const std::string key =
      "embedded " + base + " " + std::to_string(request.functions) + " " + exact(request.bin_s);
  return TraceCache::of_process().get(key, [&] { return model_of(family, base, request); });
}

// The bins of [start_s, start_s + window_s).
FunctionTrace cut_window(const FunctionTraceRequest& request, const FunctionTrace& trace) {
  if (request.start_s == 0 && request.window_s == 0) return trace;
  const double length_s = trace.bin_s * static_cast<double>(trace.bins);
  const double end_s = request.window_s > 0 ? request.start_s + request.window_s : length_s;
  if (trace.bin_s == 0) {
    throw SpecError(request.mark,
                    "trace '" + request.name + "' has no times: leave start_s and window_s at 0");
  }
  if (request.start_s >= length_s || end_s > length_s + 1e-6) {
    throw SpecError(request.mark, "start_s and window_s reach beyond trace '" + request.name +
                                      "', which is " + std::to_string(std::llround(length_s)) +
                                      " s long");
  }
  const auto first = static_cast<std::size_t>(std::floor(request.start_s / trace.bin_s));
  const auto last =
      std::min(trace.bins, static_cast<std::size_t>(std::ceil(end_s / trace.bin_s - 1e-9)));
  FunctionTrace cut;
  cut.bin_s = trace.bin_s;
  cut.bins = last - first;
  cut.functions = trace.functions;
  const auto cut_table = [&](const std::vector<float>& from, std::vector<float>* to) {
    if (from.empty()) return;
    to->reserve(cut.bins * trace.functions);
    for (std::size_t f = 0; f < trace.functions; ++f) {
      const auto row = std::span<const float>(from).subspan(f * trace.bins + first, cut.bins);
      to->insert(to->end(), row.begin(), row.end());
    }
  };
  cut_table(trace.counts, &cut.counts);
  cut_table(trace.gap_cv, &cut.gap_cv);
  return cut;
}

// Replaces a real trace by the shares of another number of functions along its popularity curve.
void resample(const FunctionTraceRequest& request, FunctionTrace* trace) {
  if (!request.shares_only) {
    throw SpecError(request.mark, "'functions' cannot change how many functions the real trace '" +
                                      request.name + "' has (" + std::to_string(trace->functions) +
                                      "); leave it at 0 or use a trace that ends in -like");
  }
  std::vector<double> totals(trace->functions);
  for (std::size_t f = 0; f < trace->functions; ++f) totals[f] = trace->total(f);
  const WorkloadSource source = trace->source;
  *trace = from_shares(resample_shares(totals, request.functions));
  trace->source = source;
}

}  // namespace

double FunctionTrace::total(std::size_t function) const {
  double sum = 0;
  for (const float count : of(function)) sum += count;
  return sum;
}

void check_trace_size(std::size_t functions, std::size_t bins) {
  if (bins > 0 && functions > kMaxCells / bins) {
    throw SpecError("a trace of " + std::to_string(functions) + " functions with " +
                    std::to_string(bins) +
                    " intervals is too large; use fewer functions or longer intervals");
  }
}

std::vector<double> resample_shares(const std::vector<double>& counts, std::size_t n) {
  std::vector<double> sorted = counts;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const double total = std::accumulate(sorted.begin(), sorted.end(), 0.0);
  std::vector<CurvePoint> curve;
  double running = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    running += sorted[i];
    curve.push_back({static_cast<double>(i + 1) / static_cast<double>(sorted.size()),
                     std::min(1.0, running / total)});
  }
  curve.back().calls = 1;
  return shares_along(curve, n);
}

std::vector<double> embedded_share_curve(const std::string& name, std::size_t n) {
  for (const EmbeddedShares& shares : embedded_shares()) {
    if (name != shares.name) continue;
    std::vector<CurvePoint> curve;
    for (const ShareKnot& knot : shares.knots) curve.push_back({knot.items, knot.calls});
    return shares_along(curve, n > 0 ? n : static_cast<std::size_t>(shares.items));
  }
  throw SpecError("no embedded popularity called '" + name + "'");
}

std::vector<std::uint32_t> map_functions(const FunctionTrace& trace, std::size_t items,
                                         std::size_t skewness, bool sort) {
  SL_CHECK(items > 0 && skewness > 0, "mapping onto nothing");
  std::vector<std::uint32_t> order(trace.functions);
  std::iota(order.begin(), order.end(), 0u);
  if (sort) {
    std::vector<double> totals(trace.functions);
    for (std::size_t f = 0; f < trace.functions; ++f) totals[f] = trace.total(f);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return totals[a] > totals[b]; });
  }
  std::vector<std::uint32_t> item_of(trace.functions);
  for (std::size_t i = 0; i < order.size(); ++i) {
    item_of[order[i]] = static_cast<std::uint32_t>(i / skewness % items);
  }
  return item_of;
}

FunctionTrace load_function_trace(const FunctionTraceRequest& request) {
  const std::string base = without_like(request.name);
  const bool asks_embedded = base != request.name;
  const auto names = known_names();
  if (std::find(names.begin(), names.end(), request.name) == names.end()) {
    if (is_own_file(request.name)) {
      const std::string path = own_file_path(request.name, request.data_dir, request.mark);
      throw SpecError(request.mark, "'" + path +
                                        "' is a file of your own, which only arrivals.process "
                                        "replay takes; " +
                                        suggest(request.name, names));
    }
    throw SpecError(request.mark, "unknown trace of functions '" + request.name + "'; " +
                                      suggest(request.name, names));
  }
  const DataFile* file = asks_embedded ? nullptr : find_data_file(base);
  const auto path = file != nullptr ? locate(*file, request.data_dir) : std::nullopt;
  const bool has_stand_in =
      asks_embedded || (file->kind != TraceKind::kRate && file->kind != TraceKind::kClients);
  WorkloadSource source;
  std::shared_ptr<const FunctionTrace> whole;
  if (path) {
    whole = load_file(*file, *path, request, &source);
  } else if (asks_embedded || (request.embedded_allowed && has_stand_in)) {
    whole = build_embedded(base, request, &source);
  } else {
    throw SpecError(request.mark, "trace '" + request.name + "' (" + file->path +
                                      ") is not on this machine; " + remedy_for(*file));
  }
  FunctionTrace trace = cut_window(request, *whole);
  trace.source = source;
  if (request.functions > 0 && request.functions != trace.functions) resample(request, &trace);
  double sum = 0;
  for (const float count : trace.counts) sum += count;
  if (sum <= 0) {
    throw SpecError(request.mark, "trace '" + request.name +
                                      "' has no invocation in the chosen window; change start_s "
                                      "or window_s");
  }
  return trace;
}

}  // namespace servelab
