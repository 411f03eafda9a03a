// Runs on the null backend, timed: what the harness's benchmarks are made of.
#ifndef SERVELAB_TESTS_BENCH_HARNESS_H_
#define SERVELAB_TESTS_BENCH_HARNESS_H_

#include <functional>
#include <string>

#include "engine/run/point.h"

namespace servelab {

double seconds_of(const std::function<void()>& work);  // of wall time
// Of processor time, which neighbours on a machine disturb less.
double cpu_seconds_of(const std::function<void()>& work);

// The first point of tests/bench/specs/<name>.yaml.
PointSettings bench_point(const std::string& name);

// That point's own workload, with as many requests; 0: as many as it says.
Workload draw_requests(const PointSettings& settings, int requests = 0);

// Requests of equal length, each with one of 64 adapters, that come as fast as one replica serves
// them in batches of `batch` with steps of `step_s`.
struct RunShape {
  int requests = 0;
  int batch = 0;
  int output = 0;  // tokens of each: steps that it is in
};
Workload even_workload(const RunShape& shape);

// The same policies, but every decision is made `times` times over: what one more costs is what one
// costs.
void plan_repeatedly(int times, PointSettings* settings);
void route_repeatedly(int times, const std::string& policy, const std::string& params,
                      PointSettings* settings);  // `params`: YAML map

// What a run costs beside drawing its requests, its summary and its file, by least squares over
// runs of many shapes: seconds = requests x request + steps x step + slices x slice, where a slice
// is one request in one step.
struct RunCost {
  double request_ns = 0;
  double step_ns = 0;
  double slice_ns = 0;
  double error = 0;  // median over the shapes of the relative error
};
// Costs of several settings, whose runs take turns, so that what disturbs the machine disturbs all.
std::vector<RunCost> run_costs(const std::vector<PointSettings>& settings, int rounds);

}  // namespace servelab

#endif  // SERVELAB_TESTS_BENCH_HARNESS_H_
