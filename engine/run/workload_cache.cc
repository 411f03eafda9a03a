#include "engine/run/workload_cache.h"

namespace servelab {

WorkloadCache::WorkloadCache(const Spec& spec, std::string data_dir)
    : seeds_(spec.seeds.size()),
      data_dir_(std::move(data_dir)),
      workloads_(spec.positions.size() * spec.seeds.size()),
      facts_(spec.positions.size()) {}

void WorkloadCache::add_user(std::size_t position, std::size_t seed) {
  ++shared(position, seed).users;
}

void WorkloadCache::release(std::size_t position, std::size_t seed) {
  Shared& workload = shared(position, seed);
  if (workload.users.fetch_sub(1) != 1) return;
  const std::lock_guard lock(workload.mutex);
  workload.built.reset();
}

std::shared_ptr<const BuiltWorkload> WorkloadCache::workload(std::size_t position, std::size_t seed,
                                                             const PointSettings& settings) {
  Shared& workload = shared(position, seed);
  const std::lock_guard lock(workload.mutex);
  if (workload.built == nullptr) {
    workload.built =
        std::make_shared<const BuiltWorkload>(build_point_workload(settings, data_dir_));
  }
  return workload.built;
}

std::shared_ptr<const BuiltWorkload> WorkloadCache::facts(std::size_t position,
                                                          const PointSettings& settings) {
  Facts& at = facts_[position];
  const std::lock_guard lock(at.mutex);
  if (at.facts == nullptr) {
    BuiltWorkload built = build_point_workload(settings, data_dir_, false);
    at.facts = std::make_shared<const BuiltWorkload>(
        BuiltWorkload{Workload{}, std::move(built.effective), std::move(built.sources)});
  }
  return at.facts;
}

}  // namespace servelab
