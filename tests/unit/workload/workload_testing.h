// Building workloads from a line of YAML, and statistics of their requests.
#ifndef SERVELAB_TESTS_UNIT_WORKLOAD_WORKLOAD_TESTING_H_
#define SERVELAB_TESTS_UNIT_WORKLOAD_WORKLOAD_TESTING_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/check.h"
#include "engine/workload/workload.h"

namespace servelab::test {

inline WorkloadContext context(std::uint64_t seed = 1) {
  WorkloadContext context;
  context.seed = seed;
  context.max_context_tokens = 4096;
  context.adapter_bytes = [](int rank) { return Bytes{rank} * 1000; };
  return context;
}

inline BuiltWorkload build(const std::string& yaml, std::uint64_t seed = 1) {
  return build_workload(parse_yaml(yaml, "spec.yaml"), context(seed));
}

inline std::string error_of(const std::string& yaml) {
  try {
    build(yaml);
  } catch (const SpecError& error) {
    return error.what();
  }
  return "(no error)";
}

inline std::vector<double> gaps_of(const std::vector<Request>& requests) {
  std::vector<double> gaps;
  TimeNs before = 0;
  for (const Request& request : requests) {
    gaps.push_back(to_seconds(request.arrival - before));
    before = request.arrival;
  }
  return gaps;
}

inline double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

inline double cv_of(const std::vector<double>& values) {
  const double mean = mean_of(values);
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / static_cast<double>(values.size())) / mean;
}

inline std::vector<double> counts_of(const Workload& workload) {
  std::vector<double> counts(std::max<std::size_t>(1, workload.adapters.size()), 0.0);
  for (const Request& request : workload.requests) {
    if (request.adapter != kBaseModel) counts[index(request.adapter)] += 1;
  }
  return counts;
}

inline bool same_requests(const Workload& a, const Workload& b) {
  return a.requests.size() == b.requests.size() &&
         std::equal(a.requests.begin(), a.requests.end(), b.requests.begin(),
                    [](const Request& x, const Request& y) {
                      return x.arrival == y.arrival && x.adapter == y.adapter &&
                             x.model == y.model && x.prompt_tokens == y.prompt_tokens &&
                             x.output_tokens == y.output_tokens &&
                             x.output_limit_tokens == y.output_limit_tokens;
                    });
}

}  // namespace servelab::test

#endif  // SERVELAB_TESTS_UNIT_WORKLOAD_WORKLOAD_TESTING_H_
