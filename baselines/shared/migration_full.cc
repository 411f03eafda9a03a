// dLoRA's program as the paper states it (5.2): binary x^G, x^H and y.
#include <cmath>
#include <limits>

#include "baselines/shared/migration_scope.h"

namespace servelab {
namespace {

struct Place {
  int replica = 0;
  int on_device = 0;  // column of x^G
  int on_host = 0;    // column of x^H
};

class FullProgram {
 public:
  // `fixed`: where each request is, or null: where the program likes.
  FullProgram(const MigrationScope& scope, const std::vector<int>* fixed)
      : scope_(scope),
        places_(scope.problem.requests.size()),
        adapter_column_(static_cast<std::size_t>(scope.adapters()) * scope.replicas(), -1),
        time_(scope.replicas()),
        device_(scope.replicas()),
        host_(scope.replicas()) {
    slowest_ = model_.add_column(0, kMipInfinity, 1, false);
    for (std::size_t i = 0; i < places_.size(); ++i) {
      const MigrationRequest& request = scope.problem.requests[i];
      if (!scope.takes_part(request.home)) continue;
      if (fixed != nullptr) {
        add_place(i, (*fixed)[i]);
      } else {
        add_place(i, request.home);
        if (!scope.may_leave(request)) continue;
        for (const int j : scope.receivers) {
          if (j != request.home) add_place(i, j);
        }
      }
    }
    add_rows();
  }

  const MipModel& model() const { return model_; }

  std::vector<int> placement(const std::vector<double>& values) const {
    std::vector<int> out(places_.size());
    for (std::size_t i = 0; i < places_.size(); ++i) {
      out[i] = scope_.problem.requests[i].home;
      for (const Place& place : places_[i]) {
        if (values[place.on_device] + values[place.on_host] > 0.5) out[i] = place.replica;
      }
    }
    return out;
  }

 private:
  void add_place(std::size_t i, int j) {
    const MigrationRequest& request = scope_.problem.requests[i];
    const Place place = {j, model_.add_column(0, 1, 0, true), model_.add_column(0, 1, 0, true)};
    places_[i].push_back(place);
    const double seconds = scope_.seconds_at(request, j);
    time_[j].push_back({place.on_device, seconds});
    time_[j].push_back({place.on_host, seconds + request.bytes / scope_.problem.link_bytes_per_s});
    device_[j].push_back({place.on_device, request.bytes});
    host_[j].push_back({place.on_host, request.bytes});
    if (request.adapter == MigrationRequest::kBase) return;
    int& y = adapter_column_[request.adapter * scope_.replicas() + j];
    if (y < 0) {
      y = model_.add_column(0, 1, 0, true);
      time_[j].push_back({y, scope_.eta_s()});
      device_[j].push_back({y, scope_.adapter_bytes(request.adapter)});
    }
    // One row per request and replica: fractional y are then at least the largest x, a better bound
    // than their mean, and programs that can be solved at all in this form are small.
    const MipEntry needs_adapter[] = {{place.on_device, 1}, {place.on_host, 1}, {y, -1}};
    model_.add_row(-kMipInfinity, 0, needs_adapter);
  }

  void add_rows() {
    for (const auto& places : places_) {
      if (places.empty()) continue;
      std::vector<MipEntry> one;
      for (const Place& place : places) {
        one.push_back({place.on_device, 1});
        one.push_back({place.on_host, 1});
      }
      model_.add_row(1, 1, one);
    }
    for (int j = 0; j < scope_.replicas(); ++j) {
      if (!scope_.takes_part(j)) continue;
      time_[j].push_back({slowest_, -1});
      model_.add_row(-kMipInfinity, 0, time_[j]);
      add_memory(device_[j], scope_.problem.replicas[j].device_bytes);
      add_memory(host_[j], scope_.problem.replicas[j].host_bytes);
    }
  }

  // In units of the largest entry: the solver's tolerance is absolute.
  void add_memory(std::vector<MipEntry> row, double capacity) {
    double unit = 0;
    for (const MipEntry& entry : row) unit = std::max(unit, entry.value);
    if (unit == 0) return;
    for (MipEntry& entry : row) entry.value /= unit;
    model_.add_row(-kMipInfinity, capacity / unit, row);
  }

  const MigrationScope& scope_;
  MipModel model_;
  int slowest_ = 0;
  std::vector<std::vector<Place>> places_;            // [requests]; empty: takes no part
  std::vector<int> adapter_column_;                   // [adapters][replicas]
  std::vector<std::vector<MipEntry>> time_;           // [replicas]
  std::vector<std::vector<MipEntry>> device_, host_;  // [replicas], bytes
};

}  // namespace

MigrationSolution solve_full_migration(const MigrationScope& scope) {
  const FullProgram program(scope, nullptr);
  const MipResult result = solve(program.model(), scope.options.mip);
  MigrationSolution out = reported(program.model(), result);
  if (!result.values.empty()) out.replica_of = program.placement(result.values);
  return out;
}

double full_bottleneck_seconds(const MigrationScope& scope, const std::vector<int>& replica_of) {
  const MipResult result = solve(FullProgram(scope, &replica_of).model(), scope.options.mip);
  if (result.status == MipStatus::kInfeasible) return kMipInfinity;
  return result.values.empty() ? std::numeric_limits<double>::quiet_NaN() : result.objective;
}

}  // namespace servelab
