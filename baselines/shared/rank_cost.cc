#include "baselines/shared/rank_cost.h"

namespace servelab {

std::optional<RankLine> fit_line(std::span<const RankPoint> points) {
  const auto n = static_cast<double>(points.size());
  double x = 0;
  double y = 0;
  for (const RankPoint& point : points) {
    x += point.load / n;
    y += point.latency_ms / n;
  }
  double xx = 0;
  double xy = 0;
  for (const RankPoint& point : points) {
    xx += (point.load - x) * (point.load - x);
    xy += (point.load - x) * (point.latency_ms - y);
  }
  if (!(xx > 0)) return std::nullopt;
  return RankLine{xy / xx, y - xy / xx * x};
}

double load_of(RankLoad load, const Ranks& ranks) {
  return static_cast<double>(load == RankLoad::kPadded ? ranks.requests * ranks.max : ranks.sum);
}

double latency_ms(const RankModel& model, const RankLine& line, const Ranks& ranks) {
  if (model.idle_is_free && ranks.requests == 0) return 0;
  return line.alpha_ms * load_of(model.load, ranks) + line.beta_ms;
}

double added_cost_ms(const RankModel& model, const RankServer& server, int rank,
                     const RankGoal& goal) {
  const double prefill = latency_ms(model, model.prefill, server.queue.with(rank)) -
                         latency_ms(model, model.prefill, server.queue);
  const double decode = latency_ms(model, model.decode, server.all.with(rank));
  const double added = decode - latency_ms(model, model.decode, server.all);
  const double penalty = goal.slo_ms > 0 && decode > goal.slo_ms ? goal.penalty_ms : 0;
  return prefill / goal.output_tokens + added + penalty;
}

double total_cost_ms(const RankModel& model, const RankServer& server, int rank,
                     const RankGoal& goal) {
  const auto requests = static_cast<double>(server.requests);
  return rank == 0 ? requests : added_cost_ms(model, server, rank, goal) * requests;
}

}  // namespace servelab
