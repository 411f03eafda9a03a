// Which adapter a request is for.
#ifndef SERVELAB_WORKLOAD_POPULARITY_H_
#define SERVELAB_WORKLOAD_POPULARITY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/config_node.h"
#include "engine/core/rng.h"
#include "engine/workload/data_files.h"
#include "engine/workload/settings.h"

namespace servelab {

class Popularity {
 public:
  // `items`: adapters, or models where there are no adapters. Shares are drawn from the stream
  // "popularity" of `seed` where `shuffle` is set.
  Popularity(const WorkloadSettings& settings, const ConfigNode& section, std::size_t items,
             std::uint64_t seed, const std::string& data_dir);

  const std::vector<double>& shares() const { return shares_; }  // sums to 1
  double weight_sum() const { return weight_sum_; }              // of kind weights, else 0
  std::uint32_t draw(RngStream* rng);
  const std::vector<WorkloadSource>& sources() const { return sources_; }

 private:
  void load_trace(const WorkloadSettings& settings, const ConfigNode& section, std::size_t items,
                  const std::string& data_dir);

  std::vector<double> shares_;
  std::optional<Categorical> categorical_;  // none: round robin
  std::uint64_t next_ = 0;
  double weight_sum_ = 0;
  std::vector<WorkloadSource> sources_;
};

// The shares of the kinds that need no trace, before any shuffle; not normalised.
std::vector<double> popularity_weights(const PopularitySettings& settings, std::size_t items);

}  // namespace servelab

#endif  // SERVELAB_WORKLOAD_POPULARITY_H_
