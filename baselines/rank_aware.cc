// CaraServe's routing (5, Algorithm 1): the server whose requests one more request costs least, by
// how batched LoRA slows down with ranks.
//
// The paper leaves open what a performance model says of no requests (nothing runs: 0), what of a
// request without an adapter (rank 0: it goes where the fewest requests are), how large a large
// penalty is, and what the average response is before one has ended.
#include <algorithm>
#include <array>
#include <vector>

#include "baselines/shared/kernel_param.h"
#include "baselines/shared/rank_cost.h"
#include "engine/serve/policy.h"

namespace servelab {
namespace {

constexpr double kNsPerMs = 1e6;
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
RankLine line_of(const CostModel& cost, LoraKernel kernel, int max_batch, int tokens, int context) {
  const RankLoad load = kernels::traits(kernel).padded ? RankLoad::kPadded : RankLoad::kSum;
  std::vector<RankPoint> points;
  for (int requests = 1; requests <= max_batch; requests *= 2) {
    for (const int rank : kProfiledRanks) {
      const StepCost step =
          cost.step(profiled_step(requests, rank, tokens, context), Exec::kUnmerged, kernel);
      const Ranks ranks{requests, std::int64_t{requests} * rank, rank};
      points.push_back({load_of(load, ranks), static_cast<double>(step.total()) / kNsPerMs});
    }
  }
  return fit_line(points)->line;  // several ranks: several loads
}

}  // namespace

class RankAware final : public ClusterPolicy {
 public:
  std::string summary() const override {
    return "the replica whose requests it slows down least, by ranks (CaraServe 5)";
  }
  void fields(ParamFields& f) override {
    add_kernel_field(f, &kernel_);
    f.add("slo_ms", &goal_.slo_ms, "of a decoding step; 0: no penalty").range(0, 1e6);
    f.add("penalty_ms", &goal_.penalty_ms, "of a replica that misses it with the request")
        .range(0, 1e12);
    f.add("output_tokens", &output_tokens_, "average response before one has ended").range(1, 1e6);
    f.add("prompt_tokens", &prompt_tokens_, "of the prefills that the model is fitted to")
        .range(1, 1 << 20);
    f.add("context_tokens", &context_tokens_, "of the decodes that the model is fitted to")
        .range(1, 1 << 20);
    for (const auto& [name, line] : {std::pair{"prefill", &prefill_}, {"decode", &decode_}}) {
      f.add(name, line, "alpha and beta in ms; empty: fitted to the hardware profile's costs");
    }
  }

  void begin(const ClusterView& view) override {
    goal_.output_tokens = output_tokens_;
    const LoraKernel kernel = kernel_from(kernel_);
    model_.load = kernels::traits(kernel).padded ? RankLoad::kPadded : RankLoad::kSum;
    const ReplicaView& first = *view.replicas().front();
    const int batch = first.limits().max_batch;
    model_.prefill =
        line(prefill_, "prefill", first.cost(), kernel, std::min(batch, 8), prompt_tokens_, 0);
    model_.decode = line(decode_, "decode", first.cost(), kernel, batch, 1, context_tokens_);
  }

  ReplicaId route(const RoutedRequest& request, const ClusterView& view) override {
    const int rank =
        request.adapter == kBaseModel ? 0 : view.adapter_table()[index(request.adapter)].rank;
    ReplicaId best{};
    double least = 0;
    for (const ReplicaView* replica : view.replicas()) {
      const auto requests = static_cast<std::int64_t>(replica->unfinished());
      const RankServer server{ranks_of(replica->waiting_ranks()),
                              ranks_of(replica->unfinished_ranks()), requests};
      const double cost =
          rank == 0 ? static_cast<double>(requests) : total_cost_ms(model_, server, rank, goal_);
      if (replica == view.replicas().front() || cost < least) {
        best = replica->id();
        least = cost;
      }
    }
    return best;
  }

  void on_finished(const FinishedRequest& request) override {
    finished_tokens_ += request.output_tokens;
    goal_.output_tokens = static_cast<double>(finished_tokens_) / static_cast<double>(++finished_);
  }

 private:
  static RankLine line(const std::vector<double>& given, const char* name, const CostModel& cost,
                       LoraKernel kernel, int max_batch, int tokens, int context) {
    if (given.empty()) return line_of(cost, kernel, max_batch, tokens, context);
    if (given.size() != 2 || given[0] < 0 || given[1] < 0) {
      throw SpecError(std::string("cluster policy 'rank-aware': '") + name +
                      "' is [alpha, beta], both in ms and neither negative");
    }
    return {given[0], given[1]};
  }

  std::string kernel_ = "mbgmv";
  RankGoal goal_{.output_tokens = 1, .slo_ms = 0, .penalty_ms = 1e3};
  double output_tokens_ = 60;  // as the paper's simulator
  int prompt_tokens_ = 64;
  int context_tokens_ = 128;
  std::vector<double> prefill_, decode_;
  RankModel model_;
  std::int64_t finished_ = 0;
  std::int64_t finished_tokens_ = 0;
};

}  // namespace servelab

SERVELAB_CLUSTER_POLICY("rank-aware", RankAware)
