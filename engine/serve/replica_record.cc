// What a replica writes into the run's record: the decision log, series, events and totals.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdio>

#include "engine/serve/replica.h"

namespace servelab {
namespace {

// In the decision hash.
constexpr std::uint64_t kLeft = 14ull << 60;
constexpr std::uint64_t kSame = 15ull << 60;

}  // namespace

// Runs of one and the same plan are logged once, with their number: however far a replica goes by
// itself, the log is the same.
void Replica::log_plan(const StepPlan& plan) {
  const bool as_text = shared_.record->options.decision_text;
  if (plan.decode_all && logged_.decode_all && !as_text) {
    if (logs_same(plan) && is_as_logged(plan)) return log_plan_again();
    log_plan_head(plan);
    hash_changes(plan);
  } else {
    unfold_logged();
    const std::vector<Slice> all = plan.decode_all ? all_slices(plan) : std::vector<Slice>();
    const std::vector<Slice>& slices = plan.decode_all ? all : plan.slices;
    if (logs_same(plan) && logged_.slices == slices) {
      log_plan_again();
      return fold_logged(plan);
    }
    log_plan_head(plan);
    hash_slices(slices);
    if (as_text) log_plan_text(plan, slices);
    logged_.slices = slices;
  }
  fold_logged(plan);
}

// Apart from its slices.
bool Replica::logs_same(const StepPlan& plan) const {
  return logged_.times > 0 && plan.only_runs() && logged_.mode == plan &&
         logged_.model == plan.model && logged_.merged == plan.merged;
}

void Replica::log_plan_head(const StepPlan& plan) {
  close_logged();
  logged_.mode = plan;
  logged_.model = plan.model;
  logged_.merged = plan.merged;
  logged_.times = plan.only_runs() ? 1 : 0;  // what did more is a line of its own
  logged_.last = shared_.timeline->now();
  StreamHash& hash = decision_hash_;
  hash.add(static_cast<std::uint64_t>(shared_.timeline->now()));
  hash.add(static_cast<std::uint64_t>(id_) | static_cast<std::uint64_t>(plan.exec) << 16 |
           static_cast<std::uint64_t>(plan.host_copy) << 20 |
           static_cast<std::uint64_t>(plan.take_over) << 22 |
           static_cast<std::uint64_t>(plan.kernel) << 24 |
           static_cast<std::uint64_t>(plan.merged) << 32);
  if (plan.device_share != 1) hash.add(std::bit_cast<std::uint64_t>(plan.device_share));
  if (plan.model != ModelId{}) hash.add(8ull << 60 | index(plan.model));
  for (const RequestId id : plan.reject) hash.add(1ull << 60 | index(id));
  for (const Preemption& p : plan.preempt) {
    hash.add(2ull << 60 | static_cast<std::uint64_t>(p.mode) << 32 | index(p.request));
  }
  for (const AdapterId id : plan.evict) hash.add(3ull << 60 | index(id));
  for (const AdapterId id : plan.load) hash.add(4ull << 60 | index(id));
  for (const ModelId id : plan.evict_models) hash.add(9ull << 60 | index(id));
  for (const ModelId id : plan.load_models) hash.add(10ull << 60 | index(id));
}

void Replica::hash_slice(const Slice& slice) {
  StreamHash& hash = decision_hash_;
  hash.add(static_cast<std::uint64_t>(slice.lora) << 56 |
           static_cast<std::uint64_t>(slice.tokens) << 32 | index(slice.request));
  if (slice.padding > 0) hash.add(11ull << 60 | static_cast<std::uint64_t>(slice.padding));
}

// By what differs from the plan before: who left, who joined or has another slice, and how many
// stayed as they were.
void Replica::hash_slices(const std::vector<Slice>& slices) {
  const std::vector<Slice>& before = logged_.slices;
  std::size_t old = 0;
  std::uint64_t same = 0;
  for (const Slice& slice : slices) {
    for (; old < before.size() && before[old].request != slice.request; ++old) {
      decision_hash_.add(kLeft | index(before[old].request));
    }
    if (old < before.size() && before[old++] == slice) {
      ++same;
    } else {
      hash_slice(slice);
    }
  }
  decision_hash_.add(kSame | same);
}

// Whether a plan that decodes all has the slices of the one that the log ends with, which did too.
bool Replica::is_as_logged(const StepPlan& plan) const {
  return plan.slices.empty() && logged_.left.empty() &&
         std::all_of(logged_.slices.begin(), logged_.slices.end(), [&](const Slice& slice) {
           return has_joined(slice) && slice == Slice{slice.request, 1};
         });
}

// The same words as hash_slices() of all of them: both plans decode all, so that the members who
// stayed are the same, and those who joined follow them.
void Replica::hash_changes(const StepPlan& plan) {
  const std::vector<Slice>& before = logged_.slices;
  std::vector<DecodeBatch::Member>& left = logged_.left;
  const auto by_seq = [](const auto& a, const auto& b) { return a.seq < b.seq; };
  std::sort(left.begin(), left.end(), by_seq);
  std::size_t followed = plan.slices.empty() ? 0 : before.size();  // slices that others come after
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (has_joined(before[i])) followed = std::max(followed, i + 1);
  }
  const bool any_after = followed > 0 || !plan.slices.empty();
  std::uint64_t same = batch_.size();
  for (const Slice& slice : before) same -= has_joined(slice) ? 1 : 0;
  for (const DecodeBatch::Member& member : left) {
    if (any_after || (same > 0 && member.seq < batch_.members()[same - 1].seq)) {
      decision_hash_.add(kLeft | index(member.id));
    }
  }
  for (std::size_t i = 0; i < followed; ++i) {
    const Slice now{before[i].request, 1};
    if (!has_joined(before[i])) {
      decision_hash_.add(kLeft | index(before[i].request));
    } else if (before[i] == now) {
      ++same;
    } else {
      hash_slice(now);
    }
  }
  for (const Slice& slice : plan.slices) hash_slice(slice);
  decision_hash_.add(kSame | same);
  logged_.slices = plan.slices;
}

bool Replica::has_joined(const Slice& logged) const {
  const RequestView& r = (*shared_.table)[index(logged.request)];
  return r.is_member_ && r.replica_ == id_;
}

std::vector<Slice> Replica::all_slices(const StepPlan& plan) const {
  std::vector<Slice> slices;
  for (const DecodeBatch::Member& member : batch_.members()) slices.push_back({member.id, 1});
  slices.insert(slices.end(), plan.slices.begin(), plan.slices.end());
  return slices;
}

// From here on the log ends with this plan, of which only what is not of the batch is kept.
void Replica::fold_logged(const StepPlan& plan) {
  logged_.left.clear();
  logged_.decode_all = plan.decode_all;
  if (!plan.decode_all) return;
  logged_.slices = plan.slices;
  logged_.until = batch_.next_seq();
}

// ... and here all of it again, before the batch changes otherwise than by who joins or ends.
void Replica::unfold_logged() {
  if (!logged_.decode_all) return;
  logged_.decode_all = false;
  std::vector<DecodeBatch::Member> members = std::move(logged_.left);
  logged_.left.clear();
  for (const DecodeBatch::Member& member : batch_.members()) {
    if (member.seq < logged_.until) members.push_back(member);
  }
  const auto by_seq = [](const auto& a, const auto& b) { return a.seq < b.seq; };
  std::sort(members.begin(), members.end(), by_seq);
  std::vector<Slice> slices;
  for (const DecodeBatch::Member& member : members) slices.push_back({member.id, 1});
  slices.insert(slices.end(), logged_.slices.begin(), logged_.slices.end());
  logged_.slices = std::move(slices);
}

void Replica::log_plan_again() {
  ++logged_.times;
  logged_.last = shared_.timeline->now();
  decision_hash_.add(static_cast<std::uint64_t>(logged_.last));
}

void Replica::close_logged() {
  if (logged_.times < 2) return;
  decision_hash_.add(12ull << 60 | static_cast<std::uint64_t>(logged_.times));
  if (!shared_.record->options.decision_text) return;
  std::string& line = shared_.record->decision_lines[logged_.line];
  line += fmt::format(" x{} until {}.{:09}", logged_.times, logged_.last / 1'000'000'000,
                      logged_.last % 1'000'000'000);
}

void Replica::log_plan_text(const StepPlan& plan, const std::vector<Slice>& slices) {
  logged_.line = shared_.record->decision_lines.size();
  std::string& out = shared_.record->decision_lines.emplace_back();
  char stamp[64];
  const TimeNs now = shared_.timeline->now();
  std::snprintf(stamp, sizeof stamp, "%lld.%09lld r%u %s", static_cast<long long>(now / 1000000000),
                static_cast<long long>(now % 1000000000), static_cast<unsigned>(id_),
                name(plan.exec));
  out += stamp;
  const auto list = [&out](const char* label, const auto& ids, auto number) {
    if (ids.empty()) return;
    out.append(" ").append(label);
    char separator = '=';
    for (const auto& id : ids) {
      out += separator;
      out += number(id);
      separator = ',';
    }
  };
  const auto plain = [](auto id) { return std::to_string(index(id)); };
  if (plan.exec == Exec::kMerged && plan.merged != kBaseModel) {
    out.append(":").append(plain(plan.merged));
  }
  if (plan.exec == Exec::kUnmerged) out.append(":").append(name(plan.kernel));
  if (plan.host_copy != HostCopy::kFused) out.append(":").append(name(plan.host_copy));
  if (plan.take_over != TakeOver::kNever) out.append(" take-over=").append(name(plan.take_over));
  if (plan.model != ModelId{}) out.append(" model=").append(plain(plan.model));
  if (plan.device_share != 1) {
    std::snprintf(stamp, sizeof stamp, " share=%g", plan.device_share);
    out += stamp;
  }
  list("reject", plan.reject, plain);
  list("preempt", plan.preempt, [&](const Preemption& p) {
    return plain(p.request) + (p.mode == PreemptMode::kSwap ? "s" : "");
  });
  list("evict", plan.evict, plain);
  list("load", plan.load, plain);
  list("evict-model", plan.evict_models, plain);
  list("load-model", plan.load_models, plain);
  list("run", slices, [&](const Slice& slice) {
    std::string text = plain(slice.request);
    if (slice.tokens > 1) text.append("x").append(std::to_string(slice.tokens));
    if (slice.lora == LoraSite::kHost) text.append("h");
    if (slice.padding > 0) text.append("+").append(std::to_string(slice.padding));
    return text;
  });
}

void Replica::note_step(const Step& step, const StepTiming& timing, std::int64_t sampled) {
  const bool merged = step.mode.exec == Exec::kMerged;
  ++shared_.record->steps;
  ++totals_.steps;
  totals_.merged_steps += merged ? 1 : 0;
  totals_.dense += timing.cost.dense;
  totals_.attention += timing.cost.attention;
  totals_.lora += timing.cost.lora;
  totals_.collective += timing.cost.collective;
  totals_.host += timing.cost.host;
  totals_.switching += timing.switching;
  totals_.load_wait += timing.load_wait;
  totals_.swap += timing.swap;
  totals_.busy += timing.busy();
  if (shared_.record->options.steps) log_step(step, timing, sampled);
  if (!shared_.record->options.series) return;
  const TimeNs now = shared_.timeline->now();
  if (now >= bin_end_) {
    close_bin();
    const TimeNs width = shared_.record->options.bin;
    bin_ = SeriesBin{};
    bin_.replica = id_;
    bin_.start = now / width * width;
    bin_end_ = bin_.start + width;
  }
  ++bin_.steps;
  bin_.merged_steps += merged ? 1 : 0;
  bin_.batch_requests += step.requests;
  bin_.prompt_tokens += step.shape.prefill_tokens;
  bin_.output_tokens += sampled;
  bin_.running = static_cast<std::int32_t>(view_.running_.size());
  bin_.waiting = static_cast<std::int32_t>(view_.waiting_.size() + view_.swapped_.size());
  bin_.kv_blocks_used = static_cast<std::int32_t>(kv_->used_blocks());
  bin_.adapters_resident = static_cast<std::int32_t>(adapters_->held());
  for (std::size_t i = 0; i < gauges_.size(); ++i) gauge_values_[i] = *gauges_[i].value;
}

void Replica::log_step(const Step& step, const StepTiming& timing, std::int64_t sampled) {
  StepRecord record;
  record.end = shared_.timeline->now();
  record.timing = timing;
  record.model = step.model;
  record.merged = step.merged;
  record.requests = static_cast<std::int32_t>(step.requests);
  record.adapters = static_cast<std::int32_t>(step.adapters.size() + step.host_adapters.size());
  record.host_requests = static_cast<std::int32_t>(step.shape.host_requests);
  record.prompt_tokens = static_cast<std::int32_t>(step.shape.prefill_tokens);
  record.output_tokens = static_cast<std::int32_t>(sampled);
  record.replica = id_;
  record.slot = static_cast<std::uint16_t>(&step - steps_.data());
  record.exec = step.mode.exec;
  shared_.record->step_log.push_back(record);
}

// Bins in which no step ended leave no entry.
void Replica::close_bin() {
  if (bin_.steps == 0) return;
  shared_.record->series.push_back(bin_);
  for (std::size_t i = 0; i < gauges_.size(); ++i) {
    GaugeSeries& series = shared_.record->gauges[first_gauge_ + i];
    series.at.push_back(bin_.start);
    series.value.push_back(gauge_values_[i]);
  }
  bin_.steps = 0;
}

void Replica::note_event(EventCode code, std::int64_t subject, double value) {
  shared_.record->events.push_back(EventRecord{shared_.timeline->now(), code, id_, subject, value});
}

}  // namespace servelab
