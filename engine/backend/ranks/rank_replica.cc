#include "engine/backend/ranks/rank_replica.h"

#include <vector>

#include "engine/backend/ranks/remote_device.h"

namespace servelab::ranks {

std::unique_ptr<Device> make_rank_replica(const Accelerator& accelerator, RankGroup* group,
                                          int first, const ModelConfig& model,
                                          const std::string& model_digest,
                                          const ModelWeights& weights, const DevicePlan& plan) {
  OpenRank open;
  open.model = model_digest;
  open.plan = plan;
  open.shard.ranks = plan.ranks;
  open.shares = !plan.partitions.empty();
  const auto ask = [group](Peer* peer, Message kind, const WireWriter& message) {
    try {
      return peer->call(Purpose::kSteps, kind, message, group->deadline());
    } catch (const GroupError& problem) {
      group->fail(problem.what());
      throw;
    }
  };
  for (int rank = 0; rank < plan.ranks; ++rank) {
    open.shard.rank = rank;
    if (first + rank > 0) ask(&group->peer(first + rank), Message::kPrepare, encode(open));
  }
  if (plan.ranks > 1) {
    if (first == 0) {
      open.group = accelerator.name_group();
    } else {
      const auto name = ask(&group->peer(first), Message::kNameGroup, {});
      WireReader(name).text(open.group);
    }
  }
  std::vector<MakeRank> makers;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    open.shard.rank = rank;
    if (first + rank == 0) {
      makers.emplace_back([&accelerator, &model, &weights, open] {
        return accelerator.make_rank(model, weights, open.plan, open.shard, open.group);
      });
    } else {
      makers.emplace_back([group, &model, open, peer = &group->peer(first + rank)] {
        return std::make_unique<RemoteDevice>(group, peer, model, open);
      });
    }
  }
  return std::make_unique<TensorParallelDevice>(
      model, plan.limits, makers, [group](const std::string& why) { group->fail(why); });
}

int rank_device(const Accelerator& accelerator, int rank, int local_rank) {
  const int there = accelerator.devices();
  if (local_rank < there) return local_rank;
  if (there == 1) return 0;
  throw SpecError("rank " + std::to_string(rank) + " is process " + std::to_string(local_rank) +
                  " of " + host_name() + ", counted from 0, and sees " + std::to_string(there) +
                  " devices there: start one process for each device");
}

}  // namespace servelab::ranks
