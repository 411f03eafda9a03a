// CaraServe's routing (5, Algorithm 1): the server whose requests one more request costs least, by
// how batched LoRA slows down with ranks.
//
// The paper leaves open what a request without an adapter costs (rank 0: it goes where the fewest
// requests are), how large a large penalty is, and what the average response is before one has
// ended.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "baselines/shared/kernel_param.h"
#include "baselines/shared/perf_model.h"
#include "baselines/shared/rank_cost.h"
#include "baselines/shared/room.h"
#include "engine/serve/policy.h"

namespace servelab {
namespace {

constexpr double kNsPerMs = 1e6;
constexpr double kSimulatedOutput = 60;  // tokens of an average response in the public simulator
constexpr std::array kProfiledRanks = {8, 16, 32, 64, 128};

Ranks ranks_of(const RankCounts& counts) { return {counts.requests(), counts.sum(), counts.max()}; }

// A step of `requests` requests under adapters of one rank, a different one each.
BatchShape profiled_step(int requests, int rank, int tokens, int context) {
  BatchShape shape;
  for (int i = 0; i < requests; ++i) {
    shape.add_slice(tokens, context, true);
    shape.add_lora_rows(tokens, context, rank);
    shape.add_lora_adapter(rank);
  }
  return shape;
}

// The line through the steps that a cost model gives, as the paper's is through profiled ones.
RankLine line_of(const CostModel& cost, LoraKernel kernel, RankLoad load, int max_batch, int tokens,
                 int context) {
  std::vector<RankPoint> points;
  for (int requests = 1; requests <= max_batch; requests *= 2) {
    for (const int rank : kProfiledRanks) {
      const StepCost step =
          cost.step(profiled_step(requests, rank, tokens, context), Exec::kUnmerged, kernel);
      const Ranks ranks{requests, std::int64_t{requests} * rank, rank};
      points.push_back({load_of(load, ranks), static_cast<double>(step.total()) / kNsPerMs});
    }
  }
  return *fit_line(points);  // several ranks: several loads
}

// A router by the performance model of a decoding step; what it makes of it is the policies' own.
class RankRouter : public ClusterPolicy {
 public:
  void fields(ParamFields& f) override {
    add_kernel_field(f, &kernel_);
    f.add("context_tokens", &context_tokens_, "of the decodes that the model is fitted to")
        .range(1, 1 << 20);
    add_line(f, "decode", &model_.decode);
    f.add("model", &model_file_, "of `servelab perf-model fit`, in place of alphas and betas")
        .file("perf-model", [this](const ConfigNode& name) { read_lines(name); });
  }

  void begin(const ClusterView& view) override {
    model_.load = load_of_kernel(kernel_);
    const ReplicaView& first = *view.replicas().front();
    fit_if_open(first, first.limits().max_batch, 1, context_tokens_, &model_.decode);
    begin_with(first);
  }

  ReplicaId route(const RoutedRequest& request, const ClusterView& view) override {
    const int rank =
        request.adapter == kBaseModel ? 0 : view.adapter_table()[index(request.adapter)].rank;
    LeastCost least;
    for (const ReplicaView* replica : view.candidates(request)) {
      const auto requests = static_cast<std::int64_t>(replica->unfinished());
      const RankServer server{ranks_of(replica->waiting_ranks()),
                              ranks_of(replica->unfinished_ranks()), requests};
      least.offer(index(replica->id()), cost_of(server, rank),
                  [&] { return has_room(*replica, request); });
    }
    return static_cast<ReplicaId>(least.server());
  }

 protected:
  virtual void begin_with(const ReplicaView& /*first*/) {}
  virtual bool needs_prefill() const { return false; }
  // What speaks against a server for a request of this rank, 0 for one without an adapter.
  virtual double cost_of(const RankServer& server, int rank) const = 0;
  virtual bool has_room(const ReplicaView& /*replica*/, const RoutedRequest& /*request*/) const {
    return true;
  }

  static void add_line(ParamFields& f, const std::string& name, RankLine* line) {
    const std::string of = name + "'s latency; both 0: fitted to the costs";
    f.add(name + "_alpha_ms", &line->alpha_ms, "by load, of a " + of).range(0, 1e6);
    f.add(name + "_beta_ms", &line->beta_ms, "of a " + of).range(-1e6, 1e6);
  }
  // Throws SpecError where the costs do not grow with ranks: all servers would cost the same.
  void fit_if_open(const ReplicaView& replica, int max_batch, int tokens, int context,
                   RankLine* line) const {
    if (is_given(*line)) return;
    if (replica.serves({})) {
      *line =
          line_of(replica.cost(), kernel_from(kernel_), model_.load, max_batch, tokens, context);
    }
    if (line->alpha_ms >= kLeastAlphaMs) return;
    throw SpecError("routing by ranks: the costs of a step under " + kernel_ +
                    " do not grow with ranks, so that no line fits them; name a performance model "
                    "(`model: FILE`, from `servelab perf-model fit`) in route_with");
  }

  RankModel model_;

 private:
  static bool is_given(const RankLine& line) { return line.alpha_ms != 0 || line.beta_ms != 0; }
  void read_lines(const ConfigNode& name) {
    if (is_given(model_.decode) || is_given(model_.prefill)) {
      throw SpecError(name.mark, "'model' gives every alpha and beta; leave out those beside it");
    }
    const RankModel read = rank_model(name.scalar, kernel_, needs_prefill());
    model_.decode = read.decode;
    if (needs_prefill()) model_.prefill = read.prefill;
  }

  std::string kernel_ = "mbgmv";
  std::string model_file_;
  int context_tokens_ = 128;
};

}  // namespace

class RankAware final : public RankRouter {
 public:
  std::string summary() const override {
    return "the replica whose requests it slows down least, by ranks (CaraServe 5)";
  }
  void fields(ParamFields& f) override {
    RankRouter::fields(f);
    add_line(f, "prefill", &model_.prefill);
    f.add("prompt_tokens", &prompt_tokens_, "of the prefills that the model is fitted to")
        .range(1, 1 << 20);
    f.add("output_tokens", &goal_.output_tokens, "average response before one has ended")
        .range(1, 1e6);
    f.add("idle_is_free", &model_.idle_is_free,
          "a batch of no requests takes nothing, where the paper's formula says beta");
    f.add("slo_ms", &goal_.slo_ms, "of a decoding step; 0: no penalty").range(0, 1e6);
    f.add("penalty_ms", &goal_.penalty_ms, "of a replica that misses it with the request")
        .range(0, 1e12);
    f.add("candidates", &candidates_,
          "replicas that come first: with free KV blocks for the prompt (5: GPU memory), and fewer "
          "requests than a batch takes too; or all alike")
        .one_of({"memory", "batch", "all"});
  }
  Capabilities capabilities() const override { return {.slo_aware = true}; }
  void on_finished(const FinishedRequest& request) override {
    finished_tokens_ += request.output_tokens;
    goal_.output_tokens = static_cast<double>(finished_tokens_) / static_cast<double>(++finished_);
  }

 private:
  void begin_with(const ReplicaView& first) override {
    constexpr int kMostPrompts = 8;  // of a prefill that the model is fitted to
    const int prompts = std::min(first.limits().max_batch, kMostPrompts);
    fit_if_open(first, prompts, prompt_tokens_, 0, &model_.prefill);
  }
  bool needs_prefill() const override { return true; }
  double cost_of(const RankServer& server, int rank) const override {
    return total_cost_ms(model_, server, rank, goal_);
  }

  bool has_room(const ReplicaView& replica, const RoutedRequest& request) const override {
    if (candidates_ == "all") return true;
    return has_kv_for(replica, request) && (candidates_ == "memory" || has_batch_slot(replica));
  }

  std::string candidates_ = "memory";
  RankGoal goal_{.output_tokens = kSimulatedOutput, .slo_ms = 0, .penalty_ms = 1e3};
  int prompt_tokens_ = 64;
  std::int64_t finished_ = 0;
  std::int64_t finished_tokens_ = 0;
};

// As the paper's public simulator has it: no penalty, one average response for the whole run, and a
// full replica gets a request only when all are full. It takes 1.5 times a decoding step for a
// prefill; here that step is the replica's with the request in it.
class RankAwareArtifact final : public RankRouter {
 public:
  std::string summary() const override {
    return "rank-aware as CaraServe's public simulator: no penalty, full replicas last";
  }
  void fields(ParamFields& f) override {
    RankRouter::fields(f);
    f.add("max_requests", &max_requests_, "unfinished requests of a full replica").range(1, 1e6);
  }

 private:
  double cost_of(const RankServer& server, int rank) const override {
    constexpr double kPrefillOverDecode = 1.5;
    constexpr double kFull = 1e12;
    const auto requests = static_cast<double>(server.requests);
    if (rank == 0) return requests;
    if (server.requests >= max_requests_) return kFull + requests;
    const double after = latency_ms(model_, model_.decode, server.all.with(rank));
    const double before = latency_ms(model_, model_.decode, server.all);
    return requests * (kPrefillOverDecode * after / kSimulatedOutput + after - before);
  }

  int max_requests_ = 32;
};

}  // namespace servelab

SERVELAB_CLUSTER_POLICY("rank-aware", RankAware)
SERVELAB_CLUSTER_POLICY("rank-aware-artifact", RankAwareArtifact)
