// The workloads of a spec's points while they are in use: the points of one position and seed share
// theirs, so that it is built once and goes after the last of them.
#ifndef SERVELAB_RUN_WORKLOAD_CACHE_H_
#define SERVELAB_RUN_WORKLOAD_CACHE_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/run/point.h"
#include "engine/spec/spec.h"

namespace servelab {

// Thread-safe. Throws SpecError where a workload is wrong.
class WorkloadCache {
 public:
  WorkloadCache(const Spec& spec, std::string data_dir);

  void add_user(std::size_t position, std::size_t seed);  // before the first use
  void release(std::size_t position, std::size_t seed);   // once per user

  std::shared_ptr<const BuiltWorkload> workload(std::size_t position, std::size_t seed,
                                                const PointSettings& settings);
  // What the workload's settings led to at a position: effective settings and sources, without the
  // requests. They do not depend on the seed, so that cached points need no workload of their own.
  std::shared_ptr<const BuiltWorkload> facts(std::size_t position, const PointSettings& settings);

 private:
  struct Shared {
    std::mutex mutex;
    std::shared_ptr<const BuiltWorkload> built;
    std::atomic<std::size_t> users{0};
  };
  struct Facts {
    std::mutex mutex;
    std::shared_ptr<const BuiltWorkload> facts;
  };
  Shared& shared(std::size_t position, std::size_t seed) {
    return workloads_[position * seeds_ + seed];
  }

  std::size_t seeds_;
  std::string data_dir_;
  std::vector<Shared> workloads_;  // by position and seed
  std::vector<Facts> facts_;       // by position
};

}  // namespace servelab

#endif  // SERVELAB_RUN_WORKLOAD_CACHE_H_
