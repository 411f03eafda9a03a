#include "engine/serve/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "engine/serve/replica.h"

namespace servelab {
namespace {

ReplicaId replica_of(std::uint64_t subject) { return static_cast<ReplicaId>(subject >> 32); }
std::uint32_t low_of(std::uint64_t subject) { return static_cast<std::uint32_t>(subject); }

// Subjects of kRebalance.
constexpr std::uint64_t kLook = 0;      // time to look at the balance
constexpr std::uint64_t kCarryOut = 1;  // the decision has been made

// Looks at the balance between which no request arrived and no step ended, with none to come.
constexpr int kMostLooksWithoutProgress = 1000;

}  // namespace

Cluster::Cluster(const ClusterSettings& settings, const Workload& workload,
                 const MakeReplicaPolicy& make_replica_policy,
                 std::unique_ptr<ClusterPolicy> cluster_policy, Backend* backend,
                 Timeline* timeline, RunRecord* record)
    : settings_(settings),
      workload_(workload),
      policy_(std::move(cluster_policy)),
      backend_(backend),
      timeline_(timeline),
      record_(record) {
  SL_CHECK(settings.replicas >= 1 && settings.replicas < UINT16_MAX, "a cluster has replicas");
  fill_table();
  view_.adapter_table_ = workload.adapters;
  view_.models_ = settings_.models;
  view_.migration_delay_ = settings.migration_delay;
  deploy(make_replica_policy);
}

void Cluster::fill_table() {
  table_.resize(workload_.requests.size());
  record_->requests.assign(workload_.requests.size(), RequestRecord{});
  for (std::size_t i = 0; i < workload_.requests.size(); ++i) {
    const Request& request = workload_.requests[i];
    SL_CHECK(i == 0 || workload_.requests[i - 1].arrival <= request.arrival,
             "a workload is sorted by arrival");
    SL_CHECK(request.prompt_tokens >= 1 && request.output_tokens >= 1 &&
                 request.output_limit_tokens >= request.output_tokens,
             "a request has tokens, and a limit that its output keeps");
    SL_CHECK(index(request.model) < settings_.models.size(), "a request is for a model of the run");
    RequestView& r = table_[i];
    r.model_ = request.model;
    r.adapter_ = request.adapter;
    if (request.adapter != kBaseModel) {
      const Adapter& adapter = workload_.adapters[index(request.adapter)];
      SL_CHECK(adapter.model == request.model, "a request's adapter belongs to its model");
      SL_CHECK(adapter.rank <= INT16_MAX, "an adapter's rank is small");
      r.rank_ = static_cast<std::int16_t>(adapter.rank);
    }
    r.prompt_tokens_ = request.prompt_tokens;
    r.true_output_tokens_ = request.output_tokens;
    r.output_limit_ =
        settings_.reveal_output_length ? request.output_tokens : request.output_limit_tokens;
  }
}

// Asks for the deployment and builds the replicas that it names.
void Cluster::deploy(const MakeReplicaPolicy& make_replica_policy) {
  const DeploymentView known(settings_, workload_);
  view_.deployment_ = policy_->deploy(known);
  if (!view_.deployment_.refused.empty()) throw SpecError(view_.deployment_.refused);
  if (settings_.engine.cached_adapters) {  // whatever the policy would hold
    for (Unit& unit : view_.deployment_.units) known.hold_all(&unit);
  }
  check_deployment(known, view_.deployment_);
  record_->deployment = view_.deployment_;
  SharedState shared;
  shared.workload = &workload_;
  shared.models = settings_.models;
  shared.backend = backend_;
  shared.timeline = timeline_;
  shared.record = record_;
  shared.table = &table_;
  shared.token_log = record_->options.token_times ? &token_log_ : nullptr;
  shared.done = &done_;
  const auto is_on = [](const Unit& unit) { return !unit.off; };
  const auto& units = view_.deployment_.units;
  loads_.emplace(static_cast<std::size_t>(
      std::max<std::ptrdiff_t>(1, std::count_if(units.begin(), units.end(), is_on))));
  shared.loads = &*loads_;
  view_.loads_ = &*loads_;
  for (const Unit& unit : view_.deployment_.units) {
    if (unit.off) continue;
    const UnitMemory memory = known.memory(unit);
    if (!memory.refused.empty()) throw SpecError(memory.refused);
    replicas_.push_back(std::make_unique<Replica>(static_cast<ReplicaId>(replicas_.size()),
                                                  settings_, unit, memory, shared,
                                                  make_replica_policy()));
    view_.replicas_.push_back(&replicas_.back()->view());
  }
  list_candidates();
  is_dirty_.resize(replicas_.size());
  if (settings_.max_waiting == 0) return;
  outside_.resize(replicas_.size());
  record_->cluster.held_back = record_->cluster.turned_away = 0;
}

// Lists only what differs from all replicas.
void Cluster::list_candidates() {
  const auto& replicas = view_.replicas_;
  const auto lacks_a_model = [this](const ReplicaView* replica) {
    return replica->unit().models.size() < settings_.models.size();
  };
  if (std::any_of(replicas.begin(), replicas.end(), lacks_a_model)) {
    view_.by_model_.resize(settings_.models.size());
    for (const ReplicaView* replica : replicas) {
      for (const UnitModel& entry : replica->unit().models) {
        view_.by_model_[index(entry.model)].push_back(replica);
      }
    }
  }
  const auto has_some = [](const ReplicaView* replica) {
    return replica->unit().repository.has_value();
  };
  if (std::none_of(replicas.begin(), replicas.end(), has_some)) return;
  view_.by_adapter_.resize(workload_.adapters.size());
  for (const ReplicaView* replica : replicas) {
    const auto add = [&](std::size_t adapter) {
      if (!replica->serves(workload_.adapters[adapter].model)) return;
      view_.by_adapter_[adapter].push_back(replica);
    };
    if (replica->unit().repository) {
      for (const AdapterId id : *replica->unit().repository) add(index(id));
    } else {
      for (std::size_t k = 0; k < workload_.adapters.size(); ++k) add(k);
    }
  }
}

Cluster::~Cluster() = default;

void Cluster::run() {
  for (const auto& replica : replicas_) replica->preload();
  policy_->begin(view_);
  post_next_arrival();
  period_ = policy_->rebalance_every();
  timeline_->begin();
  post_next_look();
  Event event;
  while (!only_looks_left() && timeline_->next(&event)) {
    if (record_->options.keep_delivered) {
      record_->delivered.push_back(DeliveredEvent{event.at, event.kind, event.subject});
    }
    if (event.at > settings_.stop_at) {
      stopped_ = true;
      break;
    }
    handle(event);
    if (event.kind == EventKind::kArrival || event.kind == EventKind::kStepDone) {
      looks_without_progress_ = 0;
      post_next_look();
    }
    // A plan sees everything that happens at its instant.
    if (!timeline_->more_now()) {
      while (route_next()) {
        do {
          plan_dirty();
        } while (held_back_ > 0 && let_in());
        if (unrouted_.empty()) break;
      }
    }
    if (event.kind != EventKind::kRebalance) record_->end = timeline_->now();
  }
  finish_record();
}

void Cluster::handle(const Event& event) {
  switch (event.kind) {
    case EventKind::kStepDone:
      if (replicas_[index(replica_of(event.subject))]->on_step_done(
              low_of(event.subject),
              dirty_.empty() && deferred_.empty() && unrouted_.empty() && !timeline_->more_now())) {
        break;
      }
      mark_dirty(replica_of(event.subject));
      report_finished(replica_of(event.subject));
      if (!deferred_.empty()) retry_migrations();
      break;
    case EventKind::kLoadDone:
      if (!backend_->load_is_done(replica_of(event.subject), low_of(event.subject))) break;
      replicas_[index(replica_of(event.subject))]->on_load_done(low_of(event.subject));
      mark_dirty(replica_of(event.subject));
      break;
    case EventKind::kArrival:
      arrive(static_cast<RequestId>(low_of(event.subject)));
      post_next_arrival();
      break;
    case EventKind::kMigrated:
      replicas_[index(replica_of(event.subject))]->admit(
          static_cast<RequestId>(low_of(event.subject)));
      mark_dirty(replica_of(event.subject));
      break;
    case EventKind::kRebalance:
      if (event.subject == kCarryOut) {
        deciding_ = false;
        carry_out(decision_);
      } else {
        look_at_balance();
      }
      break;
  }
}

// Arrivals are posted one at a time, so that the timeline stays short.
void Cluster::post_next_arrival() {
  if (next_arrival_ == workload_.requests.size()) return;
  timeline_->post(std::max(workload_.requests[next_arrival_].arrival, timeline_->now()),
                  EventKind::kArrival, next_arrival_);
  ++next_arrival_;
}

void Cluster::arrive(RequestId id) {
  ++arrived_;
  record_->arrival_lag_max =
      std::max(record_->arrival_lag_max, timeline_->now() - workload_.requests[index(id)].arrival);
  if (policy_->routes_between_steps()) {
    unrouted_.push_back(id);
  } else {
    route(id);
  }
}

bool Cluster::any_step_runs() const {
  return std::any_of(replicas_.begin(), replicas_.end(),
                     [](const auto& replica) { return replica->view().steps_in_flight() > 0; });
}

// Routes the next request that waits to be, if any, once no step runs. Returns whether replicas may
// start steps now.
bool Cluster::route_next() {
  if (unrouted_.empty()) return true;
  if (any_step_runs()) return false;
  route(unrouted_.front());
  unrouted_.pop_front();
  return true;
}

void Cluster::route(RequestId id) {
  const RequestView& r = table_[index(id)];
  const RoutedRequest routed{id,
                             r.adapter_,
                             r.model_,
                             r.prompt_tokens_,
                             r.output_limit_,
                             workload_.requests[index(id)].draw};
  const ReplicaId to = policy_->route(routed, view_);
  SL_CHECK(index(to) < replicas_.size(), "a request was routed to a replica that does not exist");
  SL_CHECK(replicas_[index(to)]->view().serves(r.model_),
           "I11: a request was routed to a replica that does not serve its model");
  SL_CHECK(replicas_[index(to)]->view().unit().stores(r.adapter_),
           "I13: a request was routed to a replica whose repository lacks its adapter");
  // Who came before and is still outside goes first.
  if (settings_.max_waiting > 0 && (!outside_[index(to)].empty() || is_full(to))) {
    keep_out(id, to);
  } else {
    enter(id, to);
  }
}

bool Cluster::is_full(ReplicaId replica) const {
  const ReplicaView& view = replicas_[index(replica)]->view();
  return static_cast<std::int64_t>(view.waiting().size() + view.swapped().size()) >=
         settings_.max_waiting;
}

void Cluster::enter(RequestId id, ReplicaId replica) {
  Replica& to = *replicas_[index(replica)];
  to.admit(id);
  mark_dirty(replica);
  const RequestView& r = table_[index(id)];
  if (policy_->loads_on_dispatch() && r.phase_ == Phase::kWaiting) to.load_ahead(r.adapter_);
}

void Cluster::keep_out(RequestId id, ReplicaId replica) {
  if (settings_.when_full == WhenFull::kReject) {
    ++record_->cluster.turned_away;
    replicas_[index(replica)]->turn_away(id);
    return;
  }
  ++record_->cluster.held_back;
  ++held_back_;
  outside_[index(replica)].push_back(id);
}

// Requests that were held back enter where there is room again, the first that came first. Returns
// whether any did.
bool Cluster::let_in() {
  const std::size_t before = held_back_;
  for (std::size_t i = 0; i < outside_.size(); ++i) {
    const auto replica = static_cast<ReplicaId>(static_cast<std::uint16_t>(i));
    while (!outside_[i].empty() && !is_full(replica)) {
      const RequestId id = outside_[i].front();
      outside_[i].pop_front();
      --held_back_;
      const TimeNs now = timeline_->now();
      record_->events.push_back(
          EventRecord{now, EventCode::kEnter, replica, static_cast<std::int64_t>(index(id)),
                      to_seconds(now - workload_.requests[index(id)].arrival)});
      enter(id, replica);
    }
  }
  return held_back_ < before;
}

void Cluster::report_finished(ReplicaId replica) {
  for (const RequestId id : replicas_[index(replica)]->just_finished()) {
    const RequestRecord& record = record_->requests[index(id)];
    const RequestView& r = table_[index(id)];
    policy_->on_finished(
        {id, r.model_, r.adapter_, replica, record.generated, record.last_token - record.admitted});
  }
}

void Cluster::post_next_look() {
  if (period_ <= 0 || look_posted_ || done_ == workload_.requests.size()) return;
  look_posted_ = true;
  timeline_->post(timeline_->now() + period_, EventKind::kRebalance, kLook);
}

// All requests are done, and what is posted would do nothing: in wall-clock time it would only be
// waited for.
bool Cluster::only_looks_left() const {
  const std::size_t posted = (look_posted_ ? 1u : 0u) + (deciding_ ? 1u : 0u);
  return done_ == workload_.requests.size() && dirty_.empty() && timeline_->idle(posted);
}

// Requests are left, and nothing will happen but what the cluster policy itself decides: a timer
// must not hide that the run has stalled.
bool Cluster::stalled() const {
  if (timeline_->idle() && dirty_.empty()) return true;
  if (looks_without_progress_ < kMostLooksWithoutProgress) return false;
  return arrived_ == workload_.requests.size() && !any_step_runs();
}

void Cluster::look_at_balance() {
  look_posted_ = false;
  if (done_ == workload_.requests.size()) return;
  ++looks_without_progress_;
  if (!stalled()) post_next_look();
  if (deciding_) return;
  const auto started = std::chrono::steady_clock::now();
  decision_ = policy_->rebalance(view_);
  record_->cluster.decision_wall_time += std::chrono::duration_cast<std::chrono::nanoseconds>(
                                             std::chrono::steady_clock::now() - started)
                                             .count();
  if (decision_.outcome == Rebalance::Outcome::kBalanced) return;
  log_decision(decision_);
  check_decision(decision_);
  deciding_ = true;
  timeline_->post(std::max(timeline_->now() + decision_.decision_time, timeline_->elapsed()),
                  EventKind::kRebalance, kCarryOut);
}

void Cluster::check_decision(const Rebalance& decision) const {
  for (const AdapterCopy& copy : decision.loads) {
    SL_CHECK(index(copy.to) < replicas_.size(), "a copy names an unknown replica");
    SL_CHECK(copy.adapter == kBaseModel || index(copy.adapter) < workload_.adapters.size(),
             "a copy names an unknown adapter");
    SL_CHECK(replicas_[index(copy.to)]->view().unit().stores(copy.adapter),
             "I13: a copy goes to a replica whose repository lacks the adapter");
  }
  for (const Migration& migration : decision.migrations) {
    SL_CHECK(index(migration.to) < replicas_.size(), "a migration names an unknown replica");
    SL_CHECK(index(migration.request) < table_.size(), "a migration names an unknown request");
    SL_CHECK(replicas_[index(migration.to)]->view().serves(table_[index(migration.request)].model_),
             "I11: a request migrates to a replica that does not serve its model");
    SL_CHECK(replicas_[index(migration.to)]->view().unit().stores(
                 table_[index(migration.request)].adapter_),
             "I13: a request migrates to a replica whose repository lacks its adapter");
  }
}

void Cluster::carry_out(const Rebalance& decision) {
  if (decision.outcome == Rebalance::Outcome::kFailed) return;
  if (done_ == workload_.requests.size()) return;  // meanwhile
  for (const AdapterCopy& copy : decision.loads) {
    replicas_[index(copy.to)]->load_ahead(copy.adapter);
  }
  for (const Migration& migration : decision.migrations) start_migration(migration);
}

void Cluster::log_decision(const Rebalance& decision) {
  const bool failed = decision.outcome == Rebalance::Outcome::kFailed;
  ClusterTotals& totals = record_->cluster;
  ++(failed ? totals.failures : totals.rebalances);
  totals.decision_time += decision.decision_time;
  const std::int64_t moved = failed ? -1 : static_cast<std::int64_t>(decision.migrations.size());
  record_->events.push_back(EventRecord{timeline_->now(), EventCode::kRebalance, kNoReplica, moved,
                                        to_seconds(decision.decision_time)});
  StreamHash& hash = record_->decision_hash;
  hash.add(5ull << 60 | static_cast<std::uint64_t>(timeline_->now()));
  hash.add(static_cast<std::uint64_t>(decision.decision_time));
  for (const AdapterCopy& copy : decision.loads) {
    hash.add(6ull << 60 | index(copy.to) << 32 | index(copy.adapter));
  }
  for (const Migration& migration : decision.migrations) {
    hash.add(7ull << 60 | index(migration.to) << 32 | index(migration.request));
  }
  if (!record_->options.decision_text) return;
  std::string& text = record_->decision_lines.emplace_back();
  text = fmt::format("{}.{:09} cluster {}", timeline_->now() / 1'000'000'000,
                     timeline_->now() % 1'000'000'000, failed ? "failed" : "rebalance");
  for (const AdapterCopy& copy : decision.loads) {
    text += fmt::format(" load={}>r{}", index(copy.adapter), index(copy.to));
  }
  for (const Migration& migration : decision.migrations) {
    text += fmt::format(" migrate={}>r{}", index(migration.request), index(migration.to));
  }
}

void Cluster::start_migration(const Migration& migration) {
  RequestView& r = table_[index(migration.request)];
  if (r.phase_ == Phase::kDone || r.phase_ == Phase::kPending) return;
  const ReplicaView& at = replicas_[index(r.replica_)]->view();
  if (at.request(migration.request).in_step()) {  // until the step's end; a later decision counts
    std::erase_if(deferred_, [&](const Migration& m) { return m.request == migration.request; });
    deferred_.push_back(migration);
    return;
  }
  const ReplicaId from = record_->requests[index(migration.request)].replica;
  if (from == migration.to) return;
  replicas_[index(from)]->release(migration.request);
  ++record_->requests[index(migration.request)].migrations;
  ++record_->cluster.migrations;
  record_->events.push_back(EventRecord{timeline_->now(), EventCode::kMigrate, from,
                                        static_cast<std::int64_t>(index(migration.request)),
                                        static_cast<double>(index(migration.to))});
  timeline_->post(timeline_->now() + settings_.migration_delay, EventKind::kMigrated,
                  pack_subject(migration.to, static_cast<std::uint32_t>(migration.request)));
  mark_dirty(from);
}

void Cluster::retry_migrations() {
  std::vector<Migration> waiting;
  waiting.swap(deferred_);
  for (const Migration& migration : waiting) start_migration(migration);
}

void Cluster::mark_dirty(ReplicaId replica) {
  if (is_dirty_[index(replica)]) return;
  is_dirty_[index(replica)] = true;
  dirty_.push_back(static_cast<std::uint32_t>(replica));
}

void Cluster::plan_dirty() {
  if (dirty_.size() > 1) std::sort(dirty_.begin(), dirty_.end());
  for (const std::uint32_t replica : dirty_) {
    is_dirty_[replica] = false;
    replicas_[replica]->plan();
  }
  dirty_.clear();
}

void Cluster::finish_record() {
  for (const auto& replica : replicas_) replica->finish();
  for (const std::string& line : record_->decision_lines) record_->decisions.append(line) += '\n';
  record_->decision_lines.clear();
  judge();
  for (std::size_t i = 0; i < table_.size(); ++i) {
    RequestRecord& r = record_->requests[i];
    if (r.status == RequestStatus::kUnfinished) r.generated = table_[i].generated_;
  }
  sort_tokens();
}

// Says why the run cannot be relied on, if it cannot.
void Cluster::judge() {
  std::vector<std::string>& reasons = record_->invalid_reasons;
  const std::size_t requests = workload_.requests.size();
  const std::size_t left = requests - done_;
  if (left > 0 && !stopped_) {
    reasons.push_back(fmt::format(
        "{} requests were left when nothing more was scheduled: the policy stalled", left));
  }
  if (record_->arrival_lag_max > settings_.max_arrival_lag) {
    reasons.push_back(fmt::format(
        "the load generator lagged: a request entered {:.3f} s after its scheduled time "
        "(limit {:.3f} s)",
        to_seconds(record_->arrival_lag_max), to_seconds(settings_.max_arrival_lag)));
  }
  if (requests == 0 || !reasons.empty()) return;
  const bool any_finished =
      std::any_of(record_->requests.begin(), record_->requests.end(),
                  [](const RequestRecord& r) { return r.status == RequestStatus::kFinished; });
  const double share = static_cast<double>(left) / static_cast<double>(requests);
  if (!any_finished) {
    reasons.push_back(
        fmt::format("no request finished: {} were rejected, {} were unfinished", done_, left));
  } else if (share > settings_.max_unfinished) {
    reasons.push_back(fmt::format("{} of {} requests were unfinished at the end (limit {:g} %)",
                                  left, requests, 100 * settings_.max_unfinished));
  }
}

// The token log is in time order; results hold it by request.
void Cluster::sort_tokens() {
  if (!record_->options.token_times) return;
  std::vector<std::int64_t>& offsets = record_->token_offsets;
  offsets.assign(table_.size() + 1, 0);
  for (const auto& [id, at] : token_log_) ++offsets[index(id) + 1];
  for (std::size_t i = 1; i < offsets.size(); ++i) offsets[i] += offsets[i - 1];
  std::vector<std::int64_t> next(offsets.begin(), offsets.end() - 1);
  record_->token_times.resize(token_log_.size());
  for (const auto& [id, at] : token_log_) {
    record_->token_times[static_cast<std::size_t>(next[index(id)]++)] = at;
  }
}

}  // namespace servelab
