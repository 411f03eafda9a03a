// Process replay: the stamps, and where it has them the adapters, of a trace.
#include <optional>
#include <string>
#include <vector>

#include "engine/core/rng.h"
#include "engine/workload/arrival_process.h"

namespace servelab {
namespace {

void load(const ArrivalInputs& inputs, ArrivalPlan* plan) {
  const std::string& name = inputs.settings->arrivals.trace;
  if (name.empty()) fail_at(inputs, "process", "process replay needs 'trace'");
  if (is_own_file(name)) {
    const std::string path =
        own_file_path(name, inputs.data_dir, inputs.section->find("trace")->mark);
    plan->replayed = read_request_trace(path, "", RowsFor::kReplay);
    plan->sources.push_back(source_of("arrivals", name, path, inputs.data_dir, "the user's own"));
  } else {
    const DataFile* file = find_data_file(name);
    if (file == nullptr || file->kind != TraceKind::kRequests) {
      fail_at(inputs, "trace",
              "unknown trace of requests '" + name + "'; " +
                  suggest(name, data_file_names({TraceKind::kRequests})) +
                  ", or a file *.csv, *.csv.gz, *.jsonl");
    }
    const auto path = locate(*file, inputs.data_dir);
    if (!path) {
      fail_at(inputs, "trace",
              "trace '" + name + "' (" + file->path +
                  ") is not on this machine and nothing embedded can replace single requests; " +
                  remedy_for(*file));
    }
    plan->replayed = read_request_trace(*path, remedy_for(*file), RowsFor::kReplay);
    plan->sources.push_back(source_of("arrivals", name, *path, inputs.data_dir, file->licence));
  }
  if (!plan->replayed.has_times) fail_at(inputs, "trace", "'" + name + "' has no times to replay");
  if (plan->replayed.rows_without_output > 0) {
    plan->notes.push_back(std::to_string(plan->replayed.rows_without_output) + " rows of trace '" +
                          name + "' have no output tokens and are left out");
  }
  std::string unused;
  for (const std::string& key : plan->replayed.unused_keys) {
    unused += (unused.empty() ? "" : ", ") + key;
  }
  if (!unused.empty()) {
    plan->notes.push_back("keys of trace '" + name + "' that are not used: " + unused);
  }
}

// The rows [first, last) of the chosen window, how many trace seconds pass per simulated one, and
// what is added to a row's stamp.
struct Window {
  std::size_t first = 0;
  std::size_t last = 0;
  double speed = 1;
  double shift_s = 0;
};

Window choose_window(const ArrivalInputs& inputs, ArrivalPlan* plan) {
  const ArrivalSettings& settings = inputs.settings->arrivals;
  const std::vector<TraceRow>& rows = plan->replayed.rows;
  const double end_s = settings.window_s > 0 ? settings.start_s + settings.window_s : 1e300;
  Window window;
  if (settings.origin == "zero") window.shift_s = plan->replayed.first_s;
  const auto is_before = [&](std::size_t row, double time_s) {
    return row < rows.size() && rows[row].at_s + window.shift_s < time_s;
  };
  while (is_before(window.first, settings.start_s)) ++window.first;
  window.last = window.first;
  while (is_before(window.last, end_s)) ++window.last;
  if (window.last == window.first) {
    fail_at(inputs, "start_s", "the trace has no request in the chosen window");
  }
  const auto count = static_cast<double>(window.last - window.first);
  const double span_s = settings.window_s > 0
                            ? settings.window_s
                            : rows[window.last - 1].at_s - rows[window.first].at_s;
  window.speed = settings.speed;
  if (settings.rate_per_s > 0) {
    if (span_s <= 0) {
      fail_at(inputs, "rate", "all requests of the trace come at once; leave 'rate' out");
    }
    window.speed = settings.rate_per_s * span_s / count;
  } else if (span_s > 0) {
    note_own_rate(count * window.speed / span_s, plan);
  }
  return window;
}

void replay_trace(ArrivalGenerator* to) {
  const ArrivalInputs& inputs = to->inputs();
  const std::size_t max_requests = to->max_requests();
  const TimeNs end = to->end();
  ArrivalPlan* const plan = &to->plan();
  load(inputs, plan);
  const Window window = choose_window(inputs, plan);
  const std::vector<TraceRow>& rows = plan->replayed.rows;
  const std::size_t items = inputs.shares->size();
  std::optional<Categorical> by_share;
  if (items > 0) by_share.emplace(*inputs.shares);
  for (std::size_t i = window.first; i < window.last && plan->arrivals.size() < max_requests; ++i) {
    const double stamp_s = rows[i].at_s + window.shift_s;
    const double at_s = (stamp_s - inputs.settings->arrivals.start_s) / window.speed;
    if (at_s >= kLatestSeconds) {
      if (end != kNever) break;
      fail_at(inputs, inputs.settings->arrivals.rate_per_s > 0 ? "rate" : "speed",
              "the replayed arrivals span more than 285 years, the end of time here");
    }
    Arrival arrival;
    arrival.at = from_seconds(at_s);
    arrival.row = static_cast<std::uint32_t>(i);
    if (arrival.at >= end) break;
    if (rows[i].adapter == kRowOfBaseModel) arrival.item = kBaseItem;
    if (rows[i].draw >= 0 && by_share) {
      arrival.item = static_cast<std::uint32_t>(by_share->at(rows[i].draw));
    }
    if (rows[i].adapter >= 0) {
      if (static_cast<std::size_t>(rows[i].adapter) >= items) {
        fail_at(inputs, "trace",
                "the trace uses adapter " + std::to_string(rows[i].adapter) +
                    ", but adapters.count gives only " + std::to_string(items));
      }
      arrival.item = static_cast<std::uint32_t>(rows[i].adapter);
    }
    plan->arrivals.push_back(arrival);
  }
  if (max_requests != SIZE_MAX && plan->arrivals.size() < max_requests && end == kNever) {
    fail_at(inputs, "trace",
            "the window of the trace has only " + std::to_string(window.last - window.first) +
                " requests; lower 'requests' or widen the window");
  }
}
}  // namespace

class ReplayArrivals final : public ArrivalKind {
 public:
  std::vector<std::string> uses() const override {
    return {"rate", "trace", "start_s", "window_s", "speed", "origin"};
  }
  bool has_own_end() const override { return true; }
  bool has_rate() const override { return false; }
  void generate(ArrivalGenerator* to) const override { replay_trace(to); }
};
}  // namespace servelab

SERVELAB_ARRIVALS("replay", ReplayArrivals)
