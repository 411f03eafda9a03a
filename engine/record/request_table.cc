#include "engine/record/request_table.h"

#include <algorithm>

#include "engine/record/columns.h"

namespace servelab {
namespace {

constexpr const char* kStatusNames[] = {"unfinished", "finished", "rejected"};
constexpr const char* kReasonNames[] = {"none", "too_long", "policy", "no_adapter_room",
                                        "queue_full"};

// What a trace said of requests and no policy sees: sessions and objectives, if any.
void write_sessions(const Workload& workload, Columns* c) {
  if (workload.sessions.empty()) return;
  c->column<std::int32_t>("session", {"1", "session that it belongs to, -1 for none"},
                          [&](std::size_t i) { return workload.sessions[i]; });
}

void write_objectives(const Workload& workload, Columns* c) {
  if (workload.objectives.empty()) return;
  const auto column = [&](const char* name, const char* text, auto member) {
    c->column<std::int64_t>(name, {"ns", text},
                            [&](std::size_t i) { return workload.objectives[i].*member; });
  };
  using O = RequestObjective;
  column("slo_latency", "longest latency that the client accepts", &O::latency);
  column("slo_tpot", "longest time per output token after the first that it accepts", &O::tpot);
  column("slo_ttft", "longest time to the first token that it accepts", &O::ttft);
}

}  // namespace

void write_requests(Hdf5Writer* out, const Workload& workload, const RunRecord& record) {
  const auto& w = workload.requests;
  const auto& r = record.requests;
  Columns c(out, "/requests", r.size());
  const auto stamp = [&](const char* name, const char* text, auto member) {
    c.column<std::int64_t>(name, {"ns", text}, [&](std::size_t i) { return r[i].*member; });
  };
  using R = RequestRecord;
  c.column<std::int32_t>("adapter", {"1", "adapter index, -1 for the base model"},
                         [&](std::size_t i) { return or_minus_one(w[i].adapter); });
  stamp("admitted", "entered a step for the first time", &R::admitted);
  if (std::any_of(w.begin(), w.end(), [](const Request& one) { return index(one.model) > 0; })) {
    c.column<std::uint16_t>("base_model", {"1", "index of its base model, where there are several"},
                            [&](std::size_t i) { return index(w[i].model); });
  }
  stamp("first_token", "first output token", &R::first_token);
  stamp("last_token", "last output token", &R::last_token);
  stamp("load_end", "its adapter's load ended", &R::load_end);
  stamp("load_start", "its adapter began to load because of it", &R::load_start);
  c.column<std::uint16_t>("migrations", {"1", "times it left a replica for another"},
                          [&](std::size_t i) { return r[i].migrations; });
  c.column<std::int32_t>("output_tokens", {"tokens", "output tokens produced"},
                         [&](std::size_t i) { return r[i].generated; });
  c.column<std::int32_t>("output_tokens_limit", {"tokens", "the client's max_tokens"},
                         [&](std::size_t i) { return w[i].output_limit_tokens; });
  c.column<std::int32_t>("output_tokens_true",
                         {"tokens", "output tokens when it finishes; no policy knows them"},
                         [&](std::size_t i) { return w[i].output_tokens; });
  c.column<std::uint16_t>("preemptions", {"1", "times it was preempted"},
                          [&](std::size_t i) { return r[i].preemptions; });
  stamp("prefill_start", "start of the step with its first slice", &R::prefill_start);
  c.column<std::int32_t>("prompt_tokens", {"tokens", "prompt length"},
                         [&](std::size_t i) { return w[i].prompt_tokens; });
  c.column<std::int32_t>(
      "rank", {"1", "LoRA rank of its adapter, 0 for the base model"}, [&](std::size_t i) {
        return w[i].adapter == kBaseModel ? 0 : workload.adapters[index(w[i].adapter)].rank;
      });
  c.column<std::uint8_t>("reject_reason", {"1", "why it was rejected", kReasonNames},
                         [&](std::size_t i) { return r[i].reject_reason; });
  c.column<std::int32_t>("replica", {"1", "replica that served it last, -1 for none"},
                         [&](std::size_t i) { return or_minus_one(r[i].replica); });
  c.column<std::int64_t>("scheduled", {"ns", "when the client sends it; latency counts from here"},
                         [&](std::size_t i) { return w[i].arrival; });
  write_sessions(workload, &c);
  write_objectives(workload, &c);
  c.column<std::uint8_t>("status", {"1", "how it ended", kStatusNames},
                         [&](std::size_t i) { return r[i].status; });
}

}  // namespace servelab
