#include "engine/workload/workload.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "engine/core/rng.h"
#include "engine/workload/arrivals.h"
#include "engine/workload/lengths.h"
#include "engine/workload/popularity.h"
#include "engine/workload/settings.h"
#include "engine/workload/settings_check.h"

namespace servelab {
namespace {

const std::vector<std::string> kSections = {"adapters", "arrivals", "popularity", "lengths",
                                            "notes"};

// The sub-map, or an empty one that stands at its parent's place.
ConfigNode section_of(const ConfigNode& settings, const std::string& name) {
  const ConfigNode* node = settings.find(name);
  if (node != nullptr) return *node;
  ConfigNode empty = ConfigNode::map();
  empty.mark = settings.mark;
  return empty;
}

SourceMark mark_in(const ConfigNode& section, const std::string& key) {
  const ConfigNode* node = section.find(key);
  return node != nullptr ? node->mark : section.mark;
}

// The rank of each adapter.
std::vector<int> deal_ranks(const AdapterSettings& settings, const ConfigNode& section,
                            std::uint64_t seed) {
  if (settings.ranks.empty()) {
    throw SpecError(mark_in(section, "ranks"), "'ranks' must name at least one rank");
  }
  for (const double rank : settings.ranks) {
    if (rank != std::floor(rank)) {
      throw SpecError(mark_in(section, "ranks"), "'ranks' must be whole numbers");
    }
  }
  std::vector<double> weights = settings.rank_weights;
  if (weights.empty()) weights.assign(settings.ranks.size(), 1.0);
  if (weights.size() != settings.ranks.size() ||
      std::accumulate(weights.begin(), weights.end(), 0.0) <= 0) {
    throw SpecError(mark_in(section, "rank_weights"),
                    "'rank_weights' must have one weight per rank, not all 0");
  }
  if (!settings.rank_weights.empty() && settings.assign != "random") {
    throw SpecError(mark_in(section, "rank_weights"), "'rank_weights' needs assign: random");
  }
  std::vector<int> ranks(static_cast<std::size_t>(settings.count));
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    ranks[i] = static_cast<int>(settings.ranks[i % settings.ranks.size()]);
  }
  RngStream rng(seed, "ranks");
  if (settings.assign == "shuffled") rng.shuffle(&ranks);
  if (settings.assign == "random") {
    const Categorical categorical(weights);
    for (int& rank : ranks) rank = static_cast<int>(settings.ranks[categorical.draw(&rng)]);
  }
  return ranks;
}

std::vector<Adapter> make_adapters(const std::vector<int>& ranks, int models,
                                   const WorkloadContext& context) {
  std::map<int, Bytes> bytes_of_rank;
  std::vector<Adapter> adapters(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    Adapter& adapter = adapters[i];
    adapter.name = "adapter-" + std::to_string(i);
    adapter.model = ModelId(i % static_cast<std::size_t>(models));
    adapter.rank = ranks[i];
    const auto [at, is_new] = bytes_of_rank.try_emplace(ranks[i], Bytes{0});
    if (is_new && context.adapter_bytes) at->second = context.adapter_bytes(ranks[i]);
    adapter.bytes = at->second;
  }
  return adapters;
}

void check_popularity(const WorkloadSettings& settings, const ConfigNode& section) {
  const PopularitySettings& popularity = settings.popularity;
  if (!follows_trace_adapters(settings.arrivals)) return;
  const bool same = popularity.trace.empty() || popularity.trace == settings.arrivals.trace;
  if (popularity.kind != "trace" || !same || popularity.shuffle) {
    throw SpecError(mark_in(section, "kind"),
                    "process " + settings.arrivals.process +
                        " takes the adapters from its trace: set popularity.kind to trace, "
                        "without another trace or shuffle");
  }
}

class Builder {
 public:
  Builder(const ConfigNode& settings, const WorkloadContext& context)
      : context_(context),
        adapters_section_(section_of(settings, "adapters")),
        arrivals_section_(section_of(settings, "arrivals")),
        popularity_section_(section_of(settings, "popularity")),
        lengths_section_(section_of(settings, "lengths")) {
    bind_params(settings, "workload", &settings_.bounds, kSections);
    bind_params(adapters_section_, "workload.adapters", &settings_.adapters);
    bind_params(arrivals_section_, "workload.arrivals", &settings_.arrivals);
    bind_params(popularity_section_, "workload.popularity", &settings_.popularity);
    bind_params(lengths_section_, "workload.lengths", &settings_.lengths);
    if (settings_.lengths.source == "trace" && settings_.arrivals.process != "replay") {
      throw SpecError(mark_in(lengths_section_, "source"),
                      "lengths.source trace needs arrivals.process replay");
    }
    check_popularity(settings_, popularity_section_);
    refuse_settings_without_effect(settings_, arrivals_section_, popularity_section_,
                                   lengths_section_);
  }

  BuiltWorkload build() {
    const std::uint64_t seed = context_.seed;
    const int models = settings_.bounds.models;
    built_.workload.adapters =
        make_adapters(deal_ranks(settings_.adapters, adapters_section_, seed), models, context_);
    const std::size_t items = built_.workload.adapters.empty() ? static_cast<std::size_t>(models)
                                                               : built_.workload.adapters.size();
    PopularitySettings uniform;  // the process decides; the shares are not used
    WorkloadSettings chosen = settings_;
    if (follows_trace_adapters(settings_.arrivals)) chosen.popularity = uniform;
    Popularity popularity(chosen, popularity_section_, items, seed, context_.data_dir);
    ArrivalInputs inputs;
    inputs.settings = &settings_;
    inputs.section = &arrivals_section_;
    inputs.seed = seed;
    inputs.data_dir = context_.data_dir;
    inputs.shares = &popularity.shares();
    inputs.weight_sum = popularity.weight_sum();
    inputs.first_only = !context_.requests;
    const ArrivalPlan plan = generate_arrivals(inputs);
    if (plan.rate_per_s > 0) settings_.arrivals.rate_per_s = plan.rate_per_s;
    built_.notes = plan.notes;
    take_ranks(plan.replayed);
    if (!built_.workload.adapters.empty()) {
      built_.workload.adapter_shares = plan.shares.empty() ? popularity.shares() : plan.shares;
    }
    const LengthSampler lengths(&settings_.lengths, lengths_section_, context_.data_dir,
                                settings_.bounds.fallback == "embedded",
                                context_.max_context_tokens);
    add_requests(plan, lengths, &popularity);
    for (const auto* sources : {&plan.sources, &popularity.sources(), &lengths.sources()}) {
      built_.sources.insert(built_.sources.end(), sources->begin(), sources->end());
    }
    built_.effective = effective();
    return std::move(built_);
  }

 private:
  void add_requests(const ArrivalPlan& plan, const LengthSampler& lengths, Popularity* popularity) {
    RngStream adapters_rng(context_.seed, "adapters");
    RngStream base_rng(context_.seed, "base");
    RngStream lengths_rng(context_.seed, "lengths");
    RngStream routes_rng(context_.seed, "routes");
    std::vector<Request>& requests = built_.workload.requests;
    requests.reserve(plan.arrivals.size());
    std::size_t cut = 0;
    std::size_t empty = 0;
    for (const Arrival& arrival : plan.arrivals) {
      const TraceRow* row = plan.replayed.rows.empty() ? nullptr : &plan.replayed.rows[arrival.row];
      Request request;
      request.arrival = arrival.at;
      request.draw = static_cast<std::uint32_t>(routes_rng.next() >> 32);
      choose_model(arrival, row, popularity, &adapters_rng, &base_rng, &request);
      LengthPair pair;
      if (settings_.lengths.source == "trace") {
        pair = lengths.finish({row->prompt_tokens, row->output_tokens});
        empty += row->prompt_tokens == 0 ? 1 : 0;
      } else {
        pair = lengths.draw(&lengths_rng);
      }
      cut += pair.is_cut ? 1 : 0;
      request.prompt_tokens = pair.prompt;
      request.output_tokens = pair.output;
      request.output_limit_tokens = lengths.output_limit(pair);
      if (settings_.lengths.source == "trace" && row->output_limit > 0) {
        request.output_limit_tokens = std::max(pair.output, row->output_limit);
      }
      requests.push_back(request);
      if (plan.replayed.has_sessions) built_.workload.sessions.push_back(row->session);
      if (plan.replayed.has_objectives) built_.workload.objectives.push_back(row->objective);
    }
    note(cut, "cut to the context of " + std::to_string(context_.max_context_tokens) + " tokens");
    note(empty, "given one prompt token, where the trace has none");
  }

  // The adapter or base model of a request. Where the trace names it, nothing is drawn.
  void choose_model(const Arrival& arrival, const TraceRow* row, Popularity* popularity,
                    RngStream* adapters_rng, RngStream* base_rng, Request* request) const {
    const std::vector<Adapter>& adapters = built_.workload.adapters;
    const std::int32_t named = row != nullptr ? row->base_model : -1;
    if (arrival.item == kBaseItem || (adapters.empty() && named >= 0)) {
      request->model = ModelId(static_cast<std::uint16_t>(std::max(0, named)));
      return;
    }
    const bool is_named = arrival.item != kAnyItem && settings_.arrivals.process == "replay";
    const std::uint32_t item =
        arrival.item != kAnyItem ? arrival.item : popularity->draw(adapters_rng);
    if (adapters.empty()) {
      request->model = ModelId(static_cast<std::uint16_t>(item));
      return;
    }
    request->model = adapters[item].model;
    const double base_share = is_named ? 0 : settings_.adapters.base_share;
    const bool is_base = base_share > 0 && base_rng->uniform() < base_share;
    request->adapter = is_base ? kBaseModel : AdapterId(item);
    if (named >= 0 && static_cast<std::size_t>(named) != index(request->model)) {
      throw SpecError(mark_in(arrivals_section_, "trace"),
                      "the trace has adapter " + std::to_string(item) + " on base model " +
                          std::to_string(named) +
                          "; with models: " + std::to_string(settings_.bounds.models) +
                          " it belongs to " + std::to_string(index(request->model)));
    }
  }

  // Ranks that the trace gives; adapters that it does not know keep those of the spec.
  void take_ranks(const RequestTrace& trace) {
    std::vector<Adapter>& adapters = built_.workload.adapters;
    const bool is_said = settings_.adapters.ranks != AdapterSettings().ranks;
    for (std::size_t i = 0; i < std::min(adapters.size(), trace.adapter_ranks.size()); ++i) {
      const int rank = trace.adapter_ranks[i];
      if (rank == 0 || rank == adapters[i].rank) continue;
      if (is_said) {
        throw SpecError(mark_in(adapters_section_, "ranks"),
                        "adapter " + std::to_string(i) + " has rank " +
                            std::to_string(adapters[i].rank) + " by 'ranks' and " +
                            std::to_string(rank) + " in the trace; remove 'ranks'");
      }
      adapters[i].rank = rank;
      adapters[i].bytes = context_.adapter_bytes ? context_.adapter_bytes(rank) : Bytes{0};
    }
    if (trace.base_models > settings_.bounds.models) {
      throw SpecError(mark_in(arrivals_section_, "trace"),
                      "the trace uses " + std::to_string(trace.base_models) +
                          " base models; set models: " + std::to_string(trace.base_models));
    }
  }

  void note(std::size_t count, const std::string& what) {
    if (count == 0) return;
    built_.notes.push_back(std::to_string(count) + " of " +
                           std::to_string(built_.workload.requests.size()) + " requests were " +
                           what);
  }

  ConfigNode effective() {
    ConfigNode node = effective_params(&settings_.bounds);
    node.set("adapters", effective_params(&settings_.adapters));
    node.set("arrivals", effective_params(&settings_.arrivals));
    node.set("popularity", effective_params(&settings_.popularity));
    node.set("lengths", effective_params(&settings_.lengths));
    return node;
  }

  const WorkloadContext& context_;
  ConfigNode adapters_section_;
  ConfigNode arrivals_section_;
  ConfigNode popularity_section_;
  ConfigNode lengths_section_;
  WorkloadSettings settings_;
  BuiltWorkload built_;
};

}  // namespace

BuiltWorkload build_workload(const ConfigNode& settings, const WorkloadContext& context) {
  return Builder(settings, context).build();
}

}  // namespace servelab
