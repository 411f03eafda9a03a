#include "tests/support/migration_oracles.h"

#include <algorithm>
#include <limits>

namespace servelab::test {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

bool may_be_at(const MigrationProblem& problem, const MigrationRequest& request, int replica) {
  return replica == request.home ||
         (problem.replicas[request.home].may_send && problem.replicas[replica].may_receive);
}

// Every way to put every request at a replica, in device (0) or host (1) memory.
class Enumeration {
 public:
  Enumeration(const MigrationProblem& problem, int memories)
      : problem_(problem), memories_(memories), at_(problem.requests.size()) {}

  template <class Visit>
  void each(std::size_t i, const Visit& visit) {
    if (i == at_.size()) {
      visit(at_);
      return;
    }
    for (int j = 0; j < static_cast<int>(problem_.replicas.size()); ++j) {
      if (!may_be_at(problem_, problem_.requests[i], j)) continue;
      for (int memory = 0; memory < memories_; ++memory) {
        at_[i] = {j, memory};
        each(i + 1, visit);
      }
    }
  }

 private:
  const MigrationProblem& problem_;
  int memories_;
  std::vector<std::pair<int, int>> at_;
};

struct Usage {
  double seconds = 0, device = 0, host = 0;
};

Usage usage_of(const MigrationProblem& problem, int replica,
               const std::vector<std::pair<int, int>>& at) {
  Usage usage;
  for (std::size_t k = 0; k < problem.adapters.size(); ++k) {
    for (std::size_t i = 0; i < at.size(); ++i) {
      if (at[i].first != replica || problem.requests[i].adapter != static_cast<int>(k)) continue;
      usage.seconds += problem.eta_s;
      usage.device += problem.adapters[k].bytes;
      break;
    }
  }
  for (std::size_t i = 0; i < at.size(); ++i) {
    if (at[i].first != replica) continue;
    const MigrationRequest& request = problem.requests[i];
    usage.seconds += request.exec_s + (request.home == replica ? 0 : request.move_s);
    (at[i].second == 0 ? usage.device : usage.host) += request.bytes;
  }
  return usage;
}

// A request, or its share z, at replica 0 takes `a`, at replica 1 `b`.
struct Split {
  double a = 0, b = 0;
};

// min over z in [0, 1]^n of max(t0 + sum z a, t1 + sum (1 - z) b).
double balance(double t0, double t1, std::vector<Split> free) {
  std::sort(free.begin(), free.end(),
            [](const Split& x, const Split& y) { return x.a * y.b < y.a * x.b; });
  for (const Split& s : free) t1 += s.b;
  for (const Split& s : free) {
    if (t0 >= t1) break;
    const double share = s.a + s.b > 0 ? std::min(1.0, (t1 - t0) / (s.a + s.b)) : 1;
    t0 += share * s.a;
    t1 -= share * s.b;
  }
  return std::max(t0, t1);
}

}  // namespace

double best_full_seconds(const MigrationProblem& problem) {
  double best = kNone;
  Enumeration(problem, 2).each(0, [&](const auto& at) {
    double slowest = 0;
    for (int j = 0; j < static_cast<int>(problem.replicas.size()); ++j) {
      const MigrationReplica& replica = problem.replicas[j];
      const Usage usage = usage_of(problem, j, at);
      if (usage.device > replica.device_bytes || usage.host > replica.host_bytes) return;
      slowest = std::max(slowest, usage.seconds + usage.host / problem.link_bytes_per_s);
    }
    best = std::min(best, slowest);
  });
  return best;
}

double best_whole_seconds(const MigrationProblem& problem, const MigrationOptions& options) {
  double best = kNone;
  std::vector<int> replica_of(problem.requests.size());
  Enumeration(problem, 1).each(0, [&](const auto& at) {
    std::transform(at.begin(), at.end(), replica_of.begin(), [](const auto& p) { return p.first; });
    best = std::min(best, bottleneck_seconds(problem, options, replica_of));
  });
  return best;
}

double best_split_seconds(const MigrationProblem& problem, const MigrationOptions& options) {
  const bool artifact = options.form == MigrationForm::kArtifact;
  const int adapters = static_cast<int>(problem.adapters.size());
  double best = kNone;
  int choices = 1;
  for (int k = 0; k < adapters; ++k) choices *= 4;  // on neither, on 0, on 1, on both
  for (int choice = 0; choice < choices; ++choice) {
    double seconds[2] = {0, 0};
    int present[2] = {0, 0};
    const auto is_at = [&](int adapter, int j) {
      return adapter == MigrationRequest::kBase || ((choice >> (2 * adapter) >> j) & 1) == 1;
    };
    for (int k = 0; k < adapters; ++k) {
      for (int j = 0; j < 2; ++j) {
        present[j] += is_at(k, j);
        if (!artifact) seconds[j] += is_at(k, j) ? problem.eta_s : 0;
      }
    }
    bool allowed = true;
    for (int j = 0; j < 2 && artifact; ++j) {
      allowed = allowed && present[j] <= static_cast<int>(problem.replicas[j].resident.size());
    }
    std::vector<Split> free;
    for (const MigrationRequest& request : problem.requests) {
      const double moved = request.exec_s + (artifact ? options.artifact_move_s : request.move_s);
      const double takes[2] = {request.home == 0 ? request.exec_s : moved,
                               request.home == 1 ? request.exec_s : moved};
      bool can[2];
      for (int j = 0; j < 2; ++j) {
        can[j] = is_at(request.adapter, j) && may_be_at(problem, request, j);
      }
      allowed = allowed && (can[0] || can[1]);
      if (can[0] && can[1]) {
        free.push_back({takes[0], takes[1]});
      } else {
        seconds[can[0] ? 0 : 1] += takes[can[0] ? 0 : 1];
      }
    }
    if (allowed) best = std::min(best, balance(seconds[0], seconds[1], std::move(free)));
  }
  return best;
}

}  // namespace servelab::test
