// dLoRA's selective form (5.2): continuous x, binary y, memory as time. Also the public artifact's.
//
// What makes it small, measured with 32 replicas, 128 adapters, 2,000 requests and K = 4 (about 800
// requests that may move); medians of the root's linear program, each step on top of the others:
//   - one column per request and replica, one link per request and replica     521 ms
//   - x at home is 1 - the sum of the others, not a column of its own          419 ms
//   - one link per adapter and replica, n y >= sum of x                        126 ms
////   - requests that are nearly the same are one column, from 0 to their number   6 ms
//   - the first basis is staying put, with every link tight                      4 ms
// What is left between the relaxation and its rounding is eta times the adapters that are split,
// well below what rounding x costs, so that the search rarely needs a node.
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

#include "baselines/shared/migration_scope.h"

namespace servelab {
namespace {

constexpr double kNothing = 1e-7;  // a share of a request that is the solver's noise

// Requests of one adapter and home that move together; numbers are means.
struct RequestClass {
  int adapter = 0;
  int home = 0;
  double exec_s = 0, move_s = 0, bytes = 0;
  std::vector<int> members;  // cheapest to move first, then by index
  struct Move {
    int replica = 0;
    int column = 0;  // how many of them move there
  };
  std::vector<Move> moves;  // by replica
};

// n y >= how many requests of an adapter are at a replica, n of them in all.
struct AdapterLink {
  int adapter = 0;
  int replica = 0;
  int column = 0;  // y
  double at_home = 0;
  double most = 0;
  std::vector<MipEntry> moves;  // +1: arrives, -1: leaves
};

// One replica with everything at home, and what changes that.
struct ReplicaRows {
  double seconds = 0;                  // of the requests that stay at home
  double bytes = 0;                    // and of what they need
  double arrivals = 0;                 // bytes that could come at most
  int swap_column = -1;                // seconds of swapping; -1: nothing can exceed the memory
  std::vector<MipEntry> time, memory;  // memory in seconds on the link
  std::vector<MipEntry> adapters;      // y of each adapter that need not be there
  int pinned = 0;                      // adapters of requests that must stay
};

class RelaxedProgram {
 public:
  explicit RelaxedProgram(const MigrationScope& scope)
      : scope_(scope),
        replicas_(scope.replicas()),
        link_of_(static_cast<std::size_t>(scope.adapters()) * scope.replicas(), kUnlinked) {
    slowest_ = model_.add_column(0, kMipInfinity, 1, false);
    add_home_loads();
    add_swap_columns();
    group_requests();
    for (RequestClass& group : classes_) add_moves(&group);
    add_link_rows();
    add_replica_rows();
  }

  const MipModel& model() const { return model_; }

  MipHints hints() const {
    return {[this](std::span<double> values) { return round(values); }, basis_};
  }

  std::vector<int> placement(const std::vector<double>& values) const;

 private:
  static constexpr int kUnlinked = -1;
  static constexpr int kPinned = -2;  // a request that must stay needs the adapter: y is 1

  double swap_seconds(double bytes) const { return bytes / scope_.problem.link_bytes_per_s; }
  int& link_of(int adapter, int replica) {
    return link_of_[static_cast<std::size_t>(adapter) * scope_.replicas() + replica];
  }

  void add_home_loads();
  void add_swap_columns();
  void group_requests();
  void add_moves(RequestClass* group);
  AdapterLink* link(int adapter, int replica);
  void add_link_rows();
  void add_replica_rows();
  bool make_room(std::span<double> values) const;
  bool round(std::span<double> values) const;
  double sum(const std::vector<MipEntry>& entries, std::span<const double> values) const {
    return std::accumulate(entries.begin(), entries.end(), 0.0, [&](double s, const MipEntry& e) {
      return s + e.value * values[e.column];
    });
  }

  const MigrationScope& scope_;
  MipModel model_;
  int slowest_ = 0;
  std::vector<ReplicaRows> replicas_;
  std::vector<RequestClass> classes_;
  std::vector<AdapterLink> links_;
  std::vector<int> link_of_;  // [adapters][replicas]: into links_, kUnlinked or kPinned
  std::vector<MipHints::Basic> basis_;
};

// A resident adapter that only requests which may leave use, or that none uses, costs eta only
// where the solution leaves or puts a request: y says what should be there, not what is.
void RelaxedProgram::add_home_loads() {
  for (const MigrationRequest& request : scope_.problem.requests) {
    if (!scope_.takes_part(request.home)) continue;
    ReplicaRows& home = replicas_[request.home];
    home.seconds += request.exec_s;
    home.bytes += request.bytes;
    if (request.adapter == MigrationRequest::kBase || scope_.may_leave(request)) continue;
    int& state = link_of(request.adapter, request.home);
    if (state == kPinned) continue;
    state = kPinned;
    home.seconds += scope_.eta_s();
    home.bytes += scope_.adapter_bytes(request.adapter);
    ++home.pinned;
  }
}

void RelaxedProgram::add_swap_columns() {
  std::vector<double> arrivals(replicas_.size());
  double leaving = 0;
  for (const MigrationRequest& request : scope_.problem.requests) {
    if (!scope_.takes_part(request.home) || !scope_.may_leave(request)) continue;
    leaving += request.bytes;
    arrivals[request.home] -= request.bytes;
  }
  double adapters = 0;
  for (int k = 0; k < scope_.adapters(); ++k) adapters += scope_.adapter_bytes(k);
  for (int j = 0; j < scope_.replicas(); ++j) {
    if (!scope_.takes_part(j)) continue;
    const bool receives = scope_.problem.replicas[j].may_receive;
    const double most = replicas_[j].bytes + adapters + (receives ? leaving + arrivals[j] : 0);
    if (most <= scope_.problem.replicas[j].device_bytes) continue;
    replicas_[j].swap_column = model_.add_column(0, kMipInfinity, 0, false);
  }
}

// Bytes separate classes only where some replica may have to swap.
void RelaxedProgram::group_requests() {
  const bool swaps = std::any_of(replicas_.begin(), replicas_.end(),
                                 [](const ReplicaRows& r) { return r.swap_column >= 0; });
  std::map<std::tuple<int, int, double, double, double>, std::size_t> known;
  const auto& requests = scope_.problem.requests;
  for (int i = 0; i < static_cast<int>(requests.size()); ++i) {
    const MigrationRequest& request = requests[i];
    if (!scope_.takes_part(request.home) || !scope_.may_leave(request)) continue;
    const double width = scope_.options.class_width * request.exec_s;
    const auto rung = [width](double s) { return width > 0 ? std::floor(s / width) : s; };
    const auto key =
        std::make_tuple(request.home, request.adapter, request.exec_s, rung(scope_.move_s(request)),
                        swaps ? rung(swap_seconds(request.bytes)) : 0.0);
    const auto [at, is_new] = known.try_emplace(key, classes_.size());
    if (is_new) classes_.push_back({request.adapter, request.home, request.exec_s, 0, 0, {}, {}});
    classes_[at->second].members.push_back(i);
  }
  for (RequestClass& group : classes_) {
    for (const int i : group.members) {
      group.move_s += scope_.move_s(requests[i]) / static_cast<double>(group.members.size());
      group.bytes += requests[i].bytes / static_cast<double>(group.members.size());
    }
    std::stable_sort(group.members.begin(), group.members.end(), [&](int a, int b) {
      return scope_.move_s(requests[a]) < scope_.move_s(requests[b]);
    });
  }
}

AdapterLink* RelaxedProgram::link(int adapter, int replica) {
  if (adapter == MigrationRequest::kBase) return nullptr;
  int& state = link_of(adapter, replica);
  if (state == kPinned) return nullptr;
  if (state == kUnlinked) {
    state = static_cast<int>(links_.size());
    const int y = model_.add_column(0, 1, 0, true);
    links_.push_back({adapter, replica, y, 0, 0, {}});
    ReplicaRows& rows = replicas_[replica];
    rows.adapters.push_back({y, 1});
    rows.time.push_back({y, scope_.eta_s()});
    if (rows.swap_column >= 0) {
      rows.memory.push_back({y, swap_seconds(scope_.adapter_bytes(adapter))});
    }
  }
  return &links_[state];
}

void RelaxedProgram::add_moves(RequestClass* group) {
  const double count = static_cast<double>(group->members.size());
  ReplicaRows& home = replicas_[group->home];
  if (AdapterLink* const y = link(group->adapter, group->home)) {
    y->at_home += count;
    y->most += count;
  }
  std::vector<MipEntry> moves;
  for (const int j : scope_.receivers) {
    if (j == group->home) continue;
    const int x = model_.add_column(0, count, 0, false);
    group->moves.push_back({j, x});
    moves.push_back({x, 1});
    home.time.push_back({x, -group->exec_s});
    replicas_[j].time.push_back({x, group->exec_s + group->move_s});
    if (home.swap_column >= 0) home.memory.push_back({x, -swap_seconds(group->bytes)});
    if (replicas_[j].swap_column >= 0) {
      replicas_[j].memory.push_back({x, swap_seconds(group->bytes)});
    }
    if (AdapterLink* const y = link(group->adapter, j)) {
      y->most += count;
      y->moves.push_back({x, 1});
    }
    if (AdapterLink* const y = link(group->adapter, group->home)) y->moves.push_back({x, -1});
  }
  if (moves.size() > 1) model_.add_row(-kMipInfinity, count, moves);
}

void RelaxedProgram::add_link_rows() {
  std::vector<MipEntry> row;
  for (const AdapterLink& y : links_) {
    row = y.moves;
    row.push_back({y.column, -y.most});
    basis_.push_back({y.column, model_.add_row(-kMipInfinity, -y.at_home, row)});
  }
}

// The basis of staying put: y as small as the links allow, and the slowest replica sets the
// objective.
void RelaxedProgram::add_replica_rows() {
  std::vector<double> start(model_.columns());
  for (const AdapterLink& y : links_) start[y.column] = y.at_home / y.most;
  double slowest = -1;
  MipHints::Basic limiting;
  for (int j = 0; j < scope_.replicas(); ++j) {
    if (!scope_.takes_part(j)) continue;
    ReplicaRows& rows = replicas_[j];
    double seconds = rows.seconds + sum(rows.time, start);
    if (rows.swap_column >= 0) {
      const double room = scope_.problem.replicas[j].device_bytes - rows.bytes;
      const double swap = sum(rows.memory, start) - swap_seconds(room);
      std::vector<MipEntry> memory = rows.memory;
      memory.push_back({rows.swap_column, -1});
      const int row = model_.add_row(-kMipInfinity, swap_seconds(room), memory);
      if (swap > 0) {
        basis_.push_back({rows.swap_column, row});
        seconds += swap;
      }
      rows.time.push_back({rows.swap_column, 1});
    }
    std::vector<MipEntry> time = rows.time;
    time.push_back({slowest_, -1});
    const int row = model_.add_row(-kMipInfinity, -rows.seconds, time);
    if (seconds > slowest) {
      slowest = seconds;
      limiting = {slowest_, row};
    }
    if (scope_.artifact()) {
      const auto resident = static_cast<double>(scope_.problem.replicas[j].resident.size());
      model_.add_row(-kMipInfinity, resident - rows.pinned, rows.adapters);
    }
  }
  if (slowest >= 0) basis_.push_back(limiting);
}

// No more adapters per replica than the artifact's form allows: the arrivals of those with the
// smallest share stay at home. False where even that does not suffice.
bool RelaxedProgram::make_room(std::span<double> values) const {
  const auto is_used = [&](const AdapterLink& y) {
    return y.at_home + sum(y.moves, values) > kNothing;
  };
  for (;;) {
    std::vector<double> room(scope_.replicas());
    for (int j = 0; j < scope_.replicas(); ++j) {
      room[j] =
          static_cast<double>(scope_.problem.replicas[j].resident.size()) - replicas_[j].pinned;
    }
    for (const AdapterLink& y : links_) room[y.replica] -= is_used(y) ? 1 : 0;
    const AdapterLink* least = nullptr;
    double share = 0;
    bool fits = true;
    for (const AdapterLink& y : links_) {
      if (room[y.replica] >= 0) continue;
      fits = false;
      if (y.at_home > 0 || !is_used(y)) continue;
      const double present = sum(y.moves, values);
      if (least != nullptr && present >= share) continue;
      least = &y;
      share = present;
    }
    if (fits || least == nullptr) return fits;
    for (const MipEntry& arrival : least->moves) values[arrival.column] = 0;
  }
}

// Every adapter that a share of a request needs is there.
bool RelaxedProgram::round(std::span<double> values) const {
  if (scope_.artifact() && !make_room(values)) return false;
  for (const AdapterLink& y : links_) {
    values[y.column] = y.at_home + sum(y.moves, values) > kNothing ? 1 : 0;
  }
  values[slowest_] = 0;
  for (int j = 0; j < scope_.replicas(); ++j) {
    if (!scope_.takes_part(j)) continue;
    const ReplicaRows& rows = replicas_[j];
    const MigrationReplica& replica = scope_.problem.replicas[j];
    if (rows.swap_column >= 0) {
      const double room = swap_seconds(replica.device_bytes - rows.bytes);
      values[rows.swap_column] = std::max(0.0, sum(rows.memory, values) - room);
    }
    values[slowest_] = std::max(values[slowest_], rows.seconds + sum(rows.time, values));
  }
  return true;
}

// argmax over j of x_ij. A class that splits fills its replicas one after the other with whole
// requests, so that its x are 0 or 1 but for the request at each seam. Where two replicas hold as
// much of a request: its home, else the lower replica.
std::vector<int> RelaxedProgram::placement(const std::vector<double>& values) const {
  std::vector<int> out;
  for (const MigrationRequest& request : scope_.problem.requests) out.push_back(request.home);
  for (const RequestClass& group : classes_) {
    double end = 0;  // of this replica's stretch on the line of members
    std::vector<double> largest(group.members.size(), 0.0);
    std::vector<double> moved(group.members.size(), 0.0);
    for (const auto& [replica, column] : group.moves) {
      const double begin = end;
      end = std::min(begin + std::max(0.0, values[column]),
                     static_cast<double>(group.members.size()));
      for (std::size_t m = static_cast<std::size_t>(begin); m < group.members.size(); ++m) {
        const double at = static_cast<double>(m);
        const double share = std::min(end, at + 1) - std::max(begin, at);
        if (share <= 0) break;
        moved[m] += share;
        if (share <= largest[m] + kNothing) continue;
        largest[m] = share;
        out[group.members[m]] = replica;
      }
    }
    for (std::size_t m = 0; m < group.members.size(); ++m) {
      if (1 - moved[m] >= largest[m] - kNothing) out[group.members[m]] = group.home;
    }
  }
  return out;
}

}  // namespace

MigrationSolution solve_relaxed_migration(const MigrationScope& scope) {
  const RelaxedProgram program(scope);
  const MipResult result = solve(program.model(), scope.options.mip, program.hints());
  MigrationSolution out = reported(program.model(), result);
  if (!result.values.empty()) out.replica_of = program.placement(result.values);
  return out;
}

}  // namespace servelab
