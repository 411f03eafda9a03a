#include "engine/record/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

namespace servelab {
namespace {

// Threads of a replica's process; steps in flight have kFirstStepThread and those after it.
constexpr int kDecisionThread = 0;
constexpr int kFirstStepThread = 1;

// Writes one event per call. Names and arguments are JSON already; times are nanoseconds, which the
// format wants as microseconds.
class EventWriter {
 public:
  explicit EventWriter(std::string* out) : out_(out) {}

  void name_process(int process, const std::string& name) {
    begin("process_name", 'M', process, 0);
    append(R"(,"args":{{"name":{}}}}})", nlohmann::json(name).dump());
    begin("process_sort_index", 'M', process, 0);
    append(R"(,"args":{{"sort_index":{}}}}})", process);
  }
  void name_thread(int process, int thread, std::string_view name) {
    begin("thread_name", 'M', process, thread);
    append(R"(,"args":{{"name":"{}"}}}})", name);
  }
  void slice(int process, int thread, std::string_view name, TimeNs from, TimeNs duration,
             std::string_view args) {
    begin(name, 'X', process, thread);
    time("ts", from);
    time("dur", duration);
    append(R"(,"args":{{{}}}}})", args);
  }
  // Slices of one category and id nest, and need no thread.
  void async_slice(int process, std::string_view category, std::int64_t id, std::string_view name,
                   TimeNs from, TimeNs to, std::string_view args = "") {
    async('b', process, category, id, name, from, args);
    async('e', process, category, id, name, to, "");
  }
  // An arrow from the slice that is open at `from` on one thread to that of another one.
  void arrow(std::string_view name, std::int64_t id, int from_process, TimeNs from, int to_process,
             int thread, TimeNs to) {
    begin(name, 's', from_process, thread);
    append(R"(,"cat":"{}","id":"{}")", name, id);
    time("ts", from);
    append("}}");
    begin(name, 'f', to_process, thread);
    append(R"(,"cat":"{}","id":"{}","bp":"e")", name, id);
    time("ts", to);
    append("}}");
  }
  void instant(int process, int thread, std::string_view name, TimeNs at, std::string_view args) {
    begin(name, 'i', process, thread);
    time("ts", at);
    append(R"(,"s":"t","args":{{{}}}}})", args);
  }
  void counter(int process, std::string_view name, TimeNs at, std::int64_t value) {
    begin(name, 'C', process, 0);
    time("ts", at);
    append(R"(,"args":{{"{}":{}}}}})", name, value);
  }

 private:
  void async(char phase, int process, std::string_view category, std::int64_t id,
             std::string_view name, TimeNs at, std::string_view args) {
    begin(name, phase, process, 0);
    append(R"(,"cat":"{}","id":"{}")", category, id);
    time("ts", at);
    append(R"(,"args":{{{}}}}})", args);
  }
  template <class... Values>
  void append(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(*out_), format, std::forward<Values>(values)...);
  }
  void begin(std::string_view name, char phase, int process, int thread) {
    *out_ += is_first_ ? "\n" : ",\n";
    is_first_ = false;
    append(R"({{"name":"{}","ph":"{}","pid":{},"tid":{})", name, phase, process, thread);
  }
  void time(std::string_view key, TimeNs ns) {
    append(R"(,"{}":{}.{:03})", key, ns / 1000, ns % 1000);
  }

  std::string* out_;
  bool is_first_ = true;
};

class RunTracer {
 public:
  RunTracer(const TracedRun& run, const TraceWindow& window, int first_process,
            std::int64_t* next_id, EventWriter* out)
      : run_(run),
        record_(*run.record),
        window_(window),
        first_process_(first_process),
        next_id_(next_id),
        out_(out) {}

  // Returns the number of processes that it took.
  int write() {
    name_processes();
    rejected_.assign(record_.requests.size(), kUnset);
    for (const EventRecord& event : record_.events) {
      if (event.code == EventCode::kReject) {
        rejected_[static_cast<std::size_t>(event.subject)] = event.at;
      }
    }
    for (const StepRecord& step : record_.step_log) write_step(step);
    for (const EventRecord& event : record_.events) write_event(event);
    for (std::size_t i = 0; i < record_.requests.size(); ++i) write_request(i);
    for (const SeriesBin& bin : record_.series) write_bin(bin);
    return 1 + static_cast<int>(record_.replicas.size());
  }

 private:
  int cluster_process() const { return first_process_; }
  int process_of(ReplicaId replica) const {
    return replica == kNoReplica ? cluster_process()
                                 : first_process_ + 1 + static_cast<int>(index(replica));
  }
  bool overlaps(TimeNs from, TimeNs to) const { return to >= window_.from && from <= window_.to; }

  void name_processes() {
    out_->name_process(cluster_process(), run_.label + ": cluster");
    std::vector<int> slots(record_.replicas.size(), 1);
    for (const StepRecord& step : record_.step_log) {
      int& most = slots[index(step.replica)];
      most = std::max(most, step.slot + 1);
    }
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const int process = process_of(static_cast<ReplicaId>(i));
      out_->name_process(process, fmt::format("{}: replica {}", run_.label, i));
      out_->name_thread(process, kDecisionThread, "decisions");
      for (int slot = 0; slot < slots[i]; ++slot) {
        out_->name_thread(process, kFirstStepThread + slot,
                          slot == 0 ? "steps" : fmt::format("steps, {} beside", slot));
      }
    }
  }

  void write_step(const StepRecord& step) {
    const StepTiming& t = step.timing;
    TimeNs at = step.end - t.busy() - t.load_wait;
    if (!overlaps(at, step.end)) return;
    const int process = process_of(step.replica);
    const int thread = kFirstStepThread + step.slot;
    const char* name = step.exec == Exec::kMerged ? "merged step" : "step";
    out_->slice(
        process, thread, name, at, step.end - at,
        fmt::format(
            R"({}"requests":{},"on the host":{},"host layers":{},"adapters":{},)"
            R"("merged adapter":{},)"
            R"("prompt tokens":{},"output tokens":{},"dense us":{},"attention us":{},"lora us":{},)"
            R"("collective us":{},"host us":{})",
            step.model == ModelId{} ? "" : fmt::format(R"("model":{},)", index(step.model)),
            step.requests, step.host_requests, t.host_layers, step.adapters, number(step.merged),
            step.prompt_tokens, step.output_tokens, t.cost.dense / 1e3, t.cost.attention / 1e3,
            t.cost.lora / 1e3, t.cost.collective / 1e3, t.cost.host / 1e3));
    const auto part = [&](const char* what, TimeNs duration) {
      if (duration <= 0) return;
      out_->slice(process, thread, what, at, duration, "");
      at += duration;
    };
    part("wait for a load", t.load_wait);
    part("move KV", t.swap);
    part("switch weights", t.switching);
  }

  void write_event(const EventRecord& event) {
    const int process = process_of(event.replica);
    const TimeNs value_ns = from_seconds(event.value);
    switch (event.code) {
      case EventCode::kLoad:
        if (!overlaps(event.at - value_ns, event.at)) return;
        out_->async_slice(process, "load", (*next_id_)++, fmt::format("load {}", event.subject),
                          event.at - value_ns, event.at,
                          fmt::format(R"("adapter":{})", event.subject));
        return;
      case EventCode::kMigrate:
        write_migration(event);
        return;
      case EventCode::kRebalance:
        if (!overlaps(event.at, event.at + value_ns)) return;
        out_->slice(process, kDecisionThread, event.subject < 0 ? "no decision" : "rebalance",
                    event.at, value_ns, fmt::format(R"("migrations":{})", event.subject));
        return;
      case EventCode::kEvict:
      case EventCode::kMerge:
      case EventCode::kPreempt:
      case EventCode::kReject:
      case EventCode::kWorkerLost:
      case EventCode::kEnter:
        if (!overlaps(event.at, event.at)) return;
        out_->instant(process, kDecisionThread, name_of(event), event.at,
                      fmt::format(R"("value":{})", event.value));
        return;
    }
  }

  static std::string name_of(const EventRecord& event) {
    if (event.code == EventCode::kMerge && event.subject < 0) return "unmerge";
    return fmt::format("{} {}", kEventCodeNames[static_cast<std::size_t>(event.code)],
                       event.subject);
  }

  // A request between two replicas: a slice of the cluster's, and an arrow.
  void write_migration(const EventRecord& event) {
    const TimeNs arrived = event.at + run_.migration_delay;
    if (!overlaps(event.at, arrived)) return;
    const auto to = static_cast<ReplicaId>(event.value);
    const std::int64_t id = (*next_id_)++;
    const std::string name = fmt::format("migrate {}", event.subject);
    const std::string args = fmt::format(R"("request":{},"from":{},"to":{})", event.subject,
                                         index(event.replica), index(to));
    out_->async_slice(cluster_process(), "migration", id, name, event.at, arrived, args);
    out_->slice(process_of(event.replica), kDecisionThread, name, event.at, 1, args);
    out_->slice(process_of(to), kDecisionThread, name, arrived, 1, args);
    out_->arrow("migration", id, process_of(event.replica), event.at, process_of(to),
                kDecisionThread, arrived);
  }

  void write_request(std::size_t i) {
    const RequestRecord& r = record_.requests[i];
    const Request& request = run_.workload->requests[i];
    const TimeNs end = r.status == RequestStatus::kRejected   ? rejected_[i]
                       : r.status == RequestStatus::kFinished ? r.last_token
                                                              : record_.end;
    if (request.arrival > record_.end || !overlaps(request.arrival, end)) return;
    const int process = process_of(r.replica);
    const std::int64_t id = (*next_id_)++;
    const auto phase = [&](std::string_view name, TimeNs from, TimeNs to,
                           std::string_view args = "") {
      if (from == kUnset || from > to) return;
      out_->async_slice(process, "request", id, name, from, to, args);
    };
    phase(fmt::format("request {}", i), request.arrival, end,
          fmt::format(R"("adapter":{},"prompt tokens":{},"output tokens":{},"preemptions":{},)"
                      R"("migrations":{})",
                      number(request.adapter), request.prompt_tokens, r.generated, r.preemptions,
                      r.migrations));
    const auto or_end = [&](TimeNs stamp) { return stamp == kUnset ? end : stamp; };
    phase("queued", request.arrival, or_end(r.admitted));
    phase("prefill", r.prefill_start, or_end(r.first_token));
    phase("decode", r.first_token, end);
  }

  void write_bin(const SeriesBin& bin) {
    if (!overlaps(bin.start, bin.start + record_.options.bin)) return;
    const int process = process_of(bin.replica);
    out_->counter(process, "running", bin.start, bin.running);
    out_->counter(process, "waiting", bin.start, bin.waiting);
    out_->counter(process, "KV blocks", bin.start, bin.kv_blocks_used);
    out_->counter(process, "adapters on the device", bin.start, bin.adapters_resident);
  }

  static std::int64_t number(AdapterId adapter) {
    return adapter == kBaseModel ? -1 : static_cast<std::int64_t>(index(adapter));
  }

  const TracedRun& run_;
  const RunRecord& record_;
  const TraceWindow& window_;
  int first_process_;
  std::int64_t* next_id_;
  EventWriter* out_;
  std::vector<TimeNs> rejected_;  // by request, when
};

}  // namespace

std::string trace_json(std::span<const TracedRun> runs, const TraceWindow& window) {
  std::string out = R"({"displayTimeUnit":"ms","traceEvents":[)";
  EventWriter writer(&out);
  int process = 1;
  std::int64_t next_id = 1;
  for (const TracedRun& run : runs) {
    process += RunTracer(run, window, process, &next_id, &writer).write();
  }
  out += "\n]}\n";
  return out;
}

}  // namespace servelab
