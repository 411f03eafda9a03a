// The operator costs against measured times, on the rows that data/fit_hardware.py did not fit:
// each benchmark's unique shapes, sorted, odd index. Needs the data folder; see data/README.md.
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "engine/backend/cost/hardware.h"
#include "engine/backend/cost/op_cost.h"

namespace servelab {
namespace {

constexpr double kShortestUs = 20;     // below, launch noise dominates
constexpr double kLargestBatch = 256;  // attention

using Shape = std::array<double, 4>;
using Table = std::map<Shape, double>;  // shape -> microseconds, in shape order

struct Device {
  const char* profile;
  const char* key;  // in the CSV files
  double allowance = 1;
};
constexpr Device kDevices[] = {{"a100-80g", "a100_sxm"},
                               {"h100-80g", "h100_sxm"},
                               {"h200-141g", "h200_sxm"},
                               {"l40s-48g", "l40s", 1.25}};  // its clock falls under load

struct Benchmark {
  const char* name;
  const char* file;
  std::array<const char*, 4> columns;  // of the shape; null where unused
  double limit_median;
  double limit_p90;
  std::function<double(const HardwareProfile&, const Shape&)> model_us;
};

const std::vector<Benchmark>& benchmarks() {
  static const std::vector<Benchmark> kBenchmarks = {
      {"GEMM",
       "aiconfigurator/gemm_bf16.csv.gz",
       {"m", "n", "k", nullptr},
       0.06,
       0.20,
       [](const HardwareProfile& hw, const Shape& s) {
         return gemm_us(hw, static_cast<std::int64_t>(s[0]), static_cast<std::int64_t>(s[1]),
                        static_cast<std::int64_t>(s[2]));
       }},
      {"prefill attention",
       "aiconfigurator/context_attention_bf16_hd128.csv.gz",
       {"batch_size", "isl", "num_heads", "num_kv_heads"},
       0.08,
       0.25,
       [](const HardwareProfile& hw, const Shape& s) {
         const PrefillAttention op(hw, static_cast<int>(s[2]), static_cast<int>(s[3]), 128);
         return op.us(s[0], s[0] * s[1], s[0] * s[1] * (s[1] + 1) / 2, s[0] * s[1]);
       }},
      {"decode attention",
       "aiconfigurator/generation_attention_bf16_hd128.csv.gz",
       {"batch_size", "kv_len", "num_heads", "num_kv_heads"},
       0.08,
       0.25,
       [](const HardwareProfile& hw, const Shape& s) {
         const DecodeAttention op(hw, static_cast<int>(s[2]), static_cast<int>(s[3]), 128);
         return op.us(s[0], s[0] * s[1], KvResidency::kMaybeL2);
       }},
  };
  return kBenchmarks;
}

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> cells;
  std::stringstream stream(line);
  for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
  return cells;
}

std::vector<std::string> read_lines(const std::string& path) {
  std::vector<std::string> lines;
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return lines;
  char buffer[4096];
  while (gzgets(file, buffer, sizeof buffer) != nullptr) {
    std::string line = buffer;
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
    lines.push_back(line);
  }
  gzclose(file);
  return lines;
}

Table read_table(const std::vector<std::string>& lines, const Benchmark& benchmark,
                 const std::string& device) {
  const std::vector<std::string> header = split(lines.at(0));
  const auto column = [&](const std::string& name) {
    const auto found = std::find(header.begin(), header.end(), name);
    EXPECT_NE(found, header.end()) << benchmark.file << " has no column " << name;
    return static_cast<std::size_t>(found - header.begin());
  };
  const std::size_t device_column = column("device");
  const std::size_t time_column = column("latency_ms");
  Table table;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string> cells = split(lines[i]);
    if (cells.size() != header.size() || cells[device_column] != device) continue;
    Shape shape{};
    for (std::size_t j = 0; j < shape.size() && benchmark.columns[j] != nullptr; ++j) {
      shape[j] = std::stod(cells[column(benchmark.columns[j])]);
    }
    table.emplace(shape, std::stod(cells[time_column]) * 1e3);
  }
  return table;
}

// Linear interpolation between order statistics, as numpy's percentile.
double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (values[high] - values[low]) * (at - std::floor(at));
}

std::vector<double> held_out_errors(const Table& table, const Benchmark& benchmark,
                                    const HardwareProfile& hw) {
  const bool is_attention = benchmark.columns[3] != nullptr;
  std::vector<double> errors;
  std::size_t index = 0;
  for (const auto& [shape, measured_us] : table) {
    const bool held_out = index++ % 2 == 1;
    if (!held_out || measured_us <= kShortestUs) continue;
    if (is_attention && shape[0] > kLargestBatch) continue;
    errors.push_back(std::abs(benchmark.model_us(hw, shape) - measured_us) / measured_us);
  }
  return errors;
}

TEST(CostModelAccuracyTest, OperatorsMatchHeldOutMeasurements) {
  const char* data = std::getenv("SERVELAB_DATA");
  if (data == nullptr)
    GTEST_SKIP() << "SERVELAB_DATA is not set: no measured times to compare with";
  std::printf("%-10s %-18s %8s %9s %9s\n", "device", "operator", "rows", "median", "P90");
  for (const Benchmark& benchmark : benchmarks()) {
    const std::vector<std::string> lines = read_lines(std::string(data) + "/" + benchmark.file);
    if (lines.empty()) GTEST_SKIP() << "SERVELAB_DATA has no " << benchmark.file;
    for (const Device& device : kDevices) {
      const HardwareProfile hw =
          load_hardware_profile(std::string(SERVELAB_SOURCE_DIR) + "/experiments/base/hardware/" +
                                device.profile + ".yaml");
      const std::vector<double> errors =
          held_out_errors(read_table(lines, benchmark, device.key), benchmark, hw);
      ASSERT_GT(errors.size(), 500u);
      const double median = quantile(errors, 0.5);
      const double p90 = quantile(errors, 0.9);
      std::printf("%-10s %-18s %8zu %8.1f%% %8.1f%%\n", device.profile, benchmark.name,
                  errors.size(), median * 100, p90 * 100);
      EXPECT_LE(median, benchmark.limit_median * device.allowance)
          << device.profile << ", " << benchmark.name;
      EXPECT_LE(p90, benchmark.limit_p90 * device.allowance)
          << device.profile << ", " << benchmark.name;
    }
  }
}

// Another group's H100 measurements, with nothing fitted to them: GEMMs of Llama-3.1 layers.
TEST(CostModelAccuracyTest, GemmsMatchAnotherLabsH100) {
  const char* data = std::getenv("SERVELAB_DATA");
  if (data == nullptr)
    GTEST_SKIP() << "SERVELAB_DATA is not set: no measured times to compare with";
  const std::vector<std::string> lines =
      read_lines(std::string(data) + "/llmservingsim/h100_layers_ns.csv.gz");
  if (lines.empty()) GTEST_SKIP() << "SERVELAB_DATA has no llmservingsim/h100_layers_ns.csv.gz";
  const HardwareProfile hw = load_hardware_profile(std::string(SERVELAB_SOURCE_DIR) +
                                                   "/experiments/base/hardware/h100-80g.yaml");
  std::map<std::string, std::vector<double>> errors;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    // model, layer_name, input, kv_cache, tp_size, latency(ns)
    const std::vector<std::string> cells = split(lines[i]);
    const double measured_us = std::stod(cells.at(5)) / 1e3;
    if (measured_us <= kShortestUs) continue;
    const bool is_70b = cells[0] == "Llama-3.1-70B";
    const std::int64_t hidden = is_70b ? 8192 : 4096;
    const std::int64_t ffn = is_70b ? 28672 : 14336;
    const std::int64_t rows = std::stoll(cells[2]);
    const std::int64_t parallel = std::stoll(cells[4]);
    double us = 0;
    if (cells[1] == "gate_proj") us = gemm_us(hw, rows, ffn / parallel, hidden);
    if (cells[1] == "down_proj") us = gemm_us(hw, rows, hidden, ffn / parallel);
    if (cells[1] == "o_proj") us = gemm_us(hw, rows, hidden, hidden / parallel);
    if (cells[1] == "lm_head") us = gemm_us(hw, rows, 128256 / parallel, hidden);
    if (us > 0)
      errors[cells[0] + " " + cells[1]].push_back(std::abs(us - measured_us) / measured_us);
  }
  EXPECT_EQ(errors.size(), 8u);
  for (const auto& [layer, values] : errors) {
    std::printf("%-10s %-24s %8zu %8.1f%% %8.1f%%\n", "h100-80g", layer.c_str(), values.size(),
                quantile(values, 0.5) * 100, quantile(values, 0.9) * 100);
    EXPECT_LE(quantile(values, 0.5), 0.10) << layer;
    EXPECT_LE(quantile(values, 0.9), 0.20) << layer;
  }
}

}  // namespace
}  // namespace servelab
