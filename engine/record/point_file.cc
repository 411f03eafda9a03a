#include "engine/record/point_file.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <span>

#include "engine/core/check.h"
#include "engine/core/digest.h"
#include "engine/record/build_id.h"
#include "engine/record/columns.h"
#include "engine/record/hdf5_reader.h"
#include "engine/record/hdf5_writer.h"
#include "engine/record/request_table.h"

namespace servelab {
namespace {

constexpr const char* kExecNames[] = {"unmerged", "merged"};

constexpr const char* kEventKindNames[] = {"step_done", "load_done", "arrival", "migrated",
                                           "rebalance"};

constexpr const char* kHostLayers = "host_layers";
const DatasetText kHostLayersAre{"1", "layers in which the host computed some LoRA"};

// Calls visit(name, description, part) for the parts of a StepTiming in the order of their names;
// part(timing) is a reference to it.
template <class Visit>
void for_each_part(Visit visit) {
  visit(
      "attention", "attention", [](auto& t) -> auto& { return t.cost.attention; });
  visit(
      "collective", "collectives", [](auto& t) -> auto& { return t.cost.collective; });
  visit(
      "dense", "dense layers", [](auto& t) -> auto& { return t.cost.dense; });
  visit(
      "host", "host work within the step", [](auto& t) -> auto& { return t.cost.host; });
  visit(
      "load_wait", "held back by a load", [](auto& t) -> auto& { return t.load_wait; });
  visit(
      "lora", "LoRA beside the weights", [](auto& t) -> auto& { return t.cost.lora; });
  visit(
      "swap", "moving KV", [](auto& t) -> auto& { return t.swap; });
  visit(
      "switching", "merging and unmerging", [](auto& t) -> auto& { return t.switching; });
}

void write_events(Hdf5Writer* out, const RunRecord& record) {
  const auto& e = record.events;
  Columns c(out, "/events", e.size());
  c.column<std::uint8_t>("code", {"1", "what happened", kEventCodeNames},
                         [&](std::size_t i) { return e[i].code; });
  c.column<std::int32_t>("replica", {"1", "replica index, -1 for none"},
                         [&](std::size_t i) { return or_minus_one(e[i].replica); });
  c.column<std::int64_t>(
      "subject",
      {"1", "adapter or request index, by code; rebalance: requests to migrate; -1 for none"},
      [&](std::size_t i) { return e[i].subject; });
  c.column<std::int64_t>("time", {"ns", "when it happened"},
                         [&](std::size_t i) { return e[i].at; });
  c.column<double>(
      "value",
      {"by code", "load, rebalance: seconds; preempt: tokens of context; migrate: destination"},
      [&](std::size_t i) { return e[i].value; });
}

// A gauge of several replicas becomes one set of columns, replica after replica.
void write_gauges(Hdf5Writer* out, const RunRecord& record) {
  std::map<std::string, std::vector<const GaugeSeries*>> by_name;
  for (const GaugeSeries& gauge : record.gauges) by_name[gauge.name].push_back(&gauge);
  for (const auto& [name, series] : by_name) {
    std::vector<std::int32_t> replica;
    std::vector<std::int64_t> time;
    std::vector<double> value;
    for (const GaugeSeries* gauge : series) {
      replica.insert(replica.end(), gauge->at.size(), or_minus_one(gauge->replica));
      time.insert(time.end(), gauge->at.begin(), gauge->at.end());
      value.insert(value.end(), gauge->value.begin(), gauge->value.end());
    }
    const std::string group = "/gauges/" + name;
    out->dataset<std::int32_t>(group + "/replica", replica, {"1", "replica index"});
    out->dataset<std::int64_t>(group + "/time", time, {"ns", "start of the bin it was read in"});
    out->dataset<double>(group + "/value", value, {"policy's own", "value at the bin's end"});
  }
}

void write_itl(Hdf5Writer* out, const LatencyHistogram& itl) {
  const auto& counts = itl.counts();
  std::vector<double> edges(counts.size());
  for (std::size_t i = 0; i < edges.size(); ++i) {
    edges[i] = LatencyHistogram::lower_edge(static_cast<int>(i));
  }
  out->dataset<std::int64_t>("/itl/count", counts,
                             {"tokens", "gaps between consecutive tokens of a request, per bin"});
  out->dataset<double>("/itl/lower_edge_ns", edges, {"ns", "lower edge of the bin"});
}

void write_replicas(Hdf5Writer* out, const RunRecord& record) {
  const auto& r = record.replicas;
  Columns c(out, "/replicas", r.size());
  const auto count = [&](const char* name, const char* units, const char* text, auto member) {
    c.column<std::int64_t>(name, {units, text}, [&](std::size_t i) { return r[i].*member; });
  };
  using T = ReplicaTotals;
  count("attention", "ns", "time in attention", &T::attention);
  count("busy", "ns", "sum of step durations", &T::busy);
  count("collective", "ns", "time in tensor-parallel collectives", &T::collective);
  count("dense", "ns", "time in the base model's dense layers", &T::dense);
  count("device_bytes", "bytes", "device memory that the engine may use", &T::device_bytes);
  count("host", "ns", "CPU work per step that the device waits for", &T::host);
  count("kv_block_bytes", "bytes", "one block of the pool", &T::kv_block_bytes);
  count("kv_blocks_peak", "blocks", "most KV blocks in use", &T::kv_blocks_peak);
  count("kv_blocks_total", "blocks", "KV blocks of the replica", &T::kv_blocks_total);
  count("load_wait", "ns", "steps held back by an adapter that was loading", &T::load_wait);
  count("loaded_bytes", "bytes", "adapters copied to the device", &T::loaded_bytes);
  count("loads", "1", "adapters copied to the device", &T::loads);
  count("lora", "ns", "time in unmerged LoRA", &T::lora);
  count("merged_steps", "1", "steps in merged execution", &T::merged_steps);
  count("scheduling", "ns", "wall time of planning and bookkeeping (real backends)",
        &T::scheduling);
  count("steps", "1", "steps", &T::steps);
  count("swap", "ns", "time moving KV to or from host memory", &T::swap);
  count("switches", "1", "changes of what is merged into the weights", &T::switches);
  count("switching", "ns", "time merging and unmerging", &T::switching);
  count("weight_bytes", "bytes", "the base model", &T::weight_bytes);
}

// What a replay needs: see RunRecord::delivered.
void write_delivered(Hdf5Writer* out, const RunRecord& record) {
  const auto& e = record.delivered;
  Columns events(out, "/delivered", e.size());
  events.column<std::int64_t>("at", {"ns", "when the event was delivered"},
                              [&](std::size_t i) { return e[i].at; });
  events.column<std::uint8_t>("kind", {"1", "what happened", kEventKindNames},
                              [&](std::size_t i) { return e[i].kind; });
  events.column<std::int64_t>("subject", {"1", "request; or replica << 32 | step slot or adapter"},
                              [&](std::size_t i) { return e[i].subject; });
}

void write_step_timings(Hdf5Writer* out, const RunRecord& record) {
  const auto& t = record.step_timings;
  Columns steps(out, "/step_timings", t.size());
  const bool on_host =
      std::any_of(t.begin(), t.end(), [](const StepTiming& step) { return step.host_layers > 0; });
  for_each_part([&](const std::string& name, const char* text, auto part) {
    if (on_host && name == "load_wait") {  // datasets are written by name
      steps.column<std::int32_t>(kHostLayers, kHostLayersAre,
                                 [&](std::size_t i) { return t[i].host_layers; });
    }
    steps.column<std::int64_t>(name.c_str(), {"ns", text},
                               [&](std::size_t i) { return part(t[i]); });
  });
}

void write_steps(Hdf5Writer* out, const RunRecord& record) {
  const auto& s = record.step_log;
  Columns c(out, "/steps", s.size());
  const auto count = [&](const char* name, const char* units, const char* text, auto member) {
    c.column<std::int32_t>(name, {units, text}, [&](std::size_t i) { return s[i].*member; });
  };
  using S = StepRecord;
  count("adapters", "1", "distinct adapters that it used", &S::adapters);
  c.column<std::int64_t>("end", {"ns", "when it ended; it was planned at end - the sum of parts"},
                         [&](std::size_t i) { return s[i].end; });
  c.column<std::uint8_t>("exec", {"1", "how it ran", kExecNames},
                         [&](std::size_t i) { return s[i].exec; });
  if (std::any_of(s.begin(), s.end(), [](const S& step) { return step.host_requests > 0; })) {
    if (std::any_of(s.begin(), s.end(),
                    [](const S& step) { return step.timing.host_work.compute > 0; })) {
      c.column<std::int64_t>("host_compute",
                             {"ns", "LoRA of the slowest worker, summed over matrices"},
                             [&](std::size_t i) { return s[i].timing.host_work.compute; });
      c.column<std::int64_t>("host_data",
                             {"ns", "until inputs had come to workers and results back"},
                             [&](std::size_t i) { return s[i].timing.host_work.data; });
    }
    c.column<std::int32_t>(kHostLayers, kHostLayersAre,
                           [&](std::size_t i) { return s[i].timing.host_layers; });
    count("host_requests", "1", "requests whose LoRA the host computed", &S::host_requests);
  }
  c.column<std::int32_t>("merged", {"1", "adapter in the weights, -1 for none"},
                         [&](std::size_t i) { return or_minus_one(s[i].merged); });
  if (std::any_of(s.begin(), s.end(), [](const S& step) { return step.model != ModelId{}; })) {
    c.column<std::uint16_t>("model", {"1", "whose requests it ran"},
                            [&](std::size_t i) { return index(s[i].model); });
  }
  count("output_tokens", "tokens", "sampled", &S::output_tokens);
  for_each_part([&](const char* name, const char* text, auto part) {
    c.column<std::int64_t>(std::string("parts/").append(name).c_str(), {"ns", text},
                           [&](std::size_t i) { return part(s[i].timing); });
  });
  count("prompt_tokens", "tokens", "prefilled", &S::prompt_tokens);
  c.column<std::int32_t>("replica", {"1", "replica index"},
                         [&](std::size_t i) { return or_minus_one(s[i].replica); });
  count("requests", "1", "requests in it", &S::requests);
  c.column<std::uint16_t>("slot", {"1", "tells steps apart that run at the same time"},
                          [&](std::size_t i) { return s[i].slot; });
}

double kv_share(const SeriesBin& bin, const RunRecord& record) {
  const std::int64_t total = record.replicas.at(index(bin.replica)).kv_blocks_total;
  return total > 0 ? static_cast<double>(bin.kv_blocks_used) / static_cast<double>(total)
                   : std::numeric_limits<double>::quiet_NaN();
}

// Named as vLLM names its Prometheus metrics (vllm/v1/metrics/loggers.py), where it has them. Its
// counters only ever grow; a bin's entry here is what the bin adds to the counter.
void write_series(Hdf5Writer* out, const RunRecord& record) {
  const auto& s = record.series;
  Columns c(out, "/series", s.size());
  const auto column = [&](const char* name, const DatasetText& text, auto member) {
    c.column<std::int64_t>(name, text, [&](std::size_t i) { return s[i].*member; });
  };
  using B = SeriesBin;
  column("adapters_resident", {"1", "adapters on the device at the bin's last step"},
         &B::adapters_resident);
  column("batch_requests", {"1", "sum over the bin's steps of requests in the step"},
         &B::batch_requests);
  column("generation_tokens", {"tokens", "sampled in the bin", {}, "vllm:generation_tokens_total"},
         &B::output_tokens);
  column("kv_blocks_used", {"blocks", "KV blocks in use at the bin's last step"},
         &B::kv_blocks_used);
  c.column<double>("kv_cache_usage_perc",
                   {"1",
                    "share of the replica's KV blocks in use at the bin's last step, 0 to 1",
                    {},
                    "vllm:kv_cache_usage_perc"},
                   [&](std::size_t i) { return kv_share(s[i], record); });
  column("merged_steps", {"1", "steps in merged execution that ended in the bin"},
         &B::merged_steps);
  column("num_requests_running",
         {"1", "running requests at the bin's last step", {}, "vllm:num_requests_running"},
         &B::running);
  column(
      "num_requests_waiting",
      {"1", "waiting and swapped requests at the bin's last step", {}, "vllm:num_requests_waiting"},
      &B::waiting);
  column("prompt_tokens", {"tokens", "prefilled in the bin", {}, "vllm:prompt_tokens_total"},
         &B::prompt_tokens);
  c.column<std::int32_t>("replica", {"1", "replica index"},
                         [&](std::size_t i) { return or_minus_one(s[i].replica); });
  column("start", {"ns", "start of the bin; bins without a step have no entry"}, &B::start);
  column("steps", {"1", "steps that ended in the bin"}, &B::steps);
}

StoredPoint write_root(Hdf5Writer* out, const PointIdentity& point, const RunRecord& record,
                       const Summary& summary) {
  StoredPoint stored;
  stored.status = record.invalid_reasons.empty() ? "VALID" : "INVALID";
  for (const std::string& reason : record.invalid_reasons) {
    stored.reasons += (stored.reasons.empty() ? "" : "; ") + reason;
  }
  stored.trace = point.trace;
  stored.content_digest = out->content_digest();
  stored.summary = summary;
  out->attribute("/", "schema", std::int64_t{kResultSchema});
  out->attribute("/", "key", point.key);
  out->attribute("/", "spec_id", point.spec_id);
  out->attribute("/", "technique", point.technique);
  out->attribute("/", "declares", point.declares);
  out->attribute("/", "seed", point.seed);
  out->attribute("/", "backend", point.backend);
  out->attribute("/", "hardware", point.hardware);
  out->attribute("/", "model", point.model);
  out->attribute("/", "trace", stored.trace);
  out->attribute("/", "status", stored.status);
  out->attribute("/", "reasons", stored.reasons);
  out->attribute("/", "notes", point.notes);
  out->attribute("/", "content_digest", stored.content_digest);
  out->attribute("/", "decision_hash", hash_text(record.decision_hash));
  out->attribute("/", "build_id", std::string(build_id()));
  for (const Metric& metric : summary) out->attribute("/summary", metric.name, metric.value);
  return stored;
}

}  // namespace

std::vector<std::byte> point_file(const PointIdentity& point, const Workload& workload,
                                  const RunRecord& record, const Summary& summary,
                                  std::string* digest) {
  SL_CHECK(record.requests.size() == workload.requests.size(), "one record per request");
  Hdf5Writer out(point.key + ".h5");
  if (record.options.decision_text) {
    out.text("/decisions", record.decisions,
             {"text", "decision log: one line per plan, or run of the same"});
  }
  if (record.options.keep_delivered) write_delivered(&out, record);
  if (record.options.requests) write_events(&out, record);
  write_gauges(&out, record);
  if (record.options.requests) write_itl(&out, record.itl);
  write_replicas(&out, record);
  if (record.options.requests) write_requests(&out, workload, record);
  if (record.options.series) write_series(&out, record);
  out.text("/sources", point.sources, {"json", "traces and length sets that were used"});
  out.text("/spec/effective", point.effective, {"json", "settings after defaults"});
  out.text("/spec/requested", point.requested, {"json", "settings as written"});
  out.text("/spec/sweep", point.sweep, {"json", "this point's coordinates"});
  if (record.options.keep_delivered) write_step_timings(&out, record);
  if (record.options.steps) write_steps(&out, record);
  if (record.options.token_times) {
    out.dataset<std::int64_t>("/tokens/offsets", record.token_offsets,
                              {"1", "request i's tokens are times[offsets[i]:offsets[i+1]]"});
    out.dataset<std::int64_t>("/tokens/times", record.token_times,
                              {"ns", "when each output token was produced"});
  }
  const StoredPoint stored = write_root(&out, point, record, summary);
  if (digest != nullptr) *digest = stored.content_digest;
  out.text("/context", point.context, {"json", "machine, program and wall time; not digested"});
  return out.finish();
}

bool read_delivered(const std::string& path, RunRecord* record, std::string* decision_hash) {
  const Hdf5Reader file(path);
  if (!file.has("/delivered/at")) return false;
  *decision_hash = file.text_attribute("/", "decision_hash");
  const std::vector<std::int64_t> at = file.integers("/delivered/at");
  const std::vector<std::int64_t> kind = file.integers("/delivered/kind");
  const std::vector<std::int64_t> subject = file.integers("/delivered/subject");
  record->delivered.resize(at.size());
  for (std::size_t i = 0; i < at.size(); ++i) {
    record->delivered[i] = {at[i], static_cast<EventKind>(kind.at(i)),
                            static_cast<std::uint64_t>(subject.at(i))};
  }
  for_each_part([&](const char* name, const char*, auto part) {
    const std::vector<std::int64_t> values = file.integers(std::string("/step_timings/") + name);
    record->step_timings.resize(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) part(record->step_timings[i]) = values[i];
  });
  const std::string host_layers = std::string("/step_timings/") + kHostLayers;
  if (file.has(host_layers)) {
    const std::vector<std::int64_t> values = file.integers(host_layers);
    for (std::size_t i = 0; i < record->step_timings.size(); ++i) {
      record->step_timings[i].host_layers = static_cast<int>(values.at(i));
    }
  }
  return true;
}

std::string hash_text(const StreamHash& hash) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash.value()));
  return text;
}

std::optional<StoredPoint> read_point(const std::string& path, const std::string& key,
                                      std::string* damage) {
  damage->clear();
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  try {
    const Hdf5Reader file(path);
    StoredPoint point;
    point.status = file.text_attribute("/", "status");
    point.reasons = file.text_attribute("/", "reasons");
    point.trace = file.text_attribute("/", "trace");
    point.content_digest = file.text_attribute("/", "content_digest");
    point.decision_hash = file.text_attribute("/", "decision_hash");
    for (const auto& [name, value] : file.number_attributes("/summary")) {
      point.summary.push_back({name, value});
    }
    if (file.int_attribute("/", "schema") != kResultSchema ||
        file.text_attribute("/", "key") != key) {
      *damage = "it is another point's file";
    } else {
      return point;
    }
  } catch (const std::exception&) {
    *damage = "its checksum does not match";
  }
  return std::nullopt;
}

}  // namespace servelab
