// The server that a predictor was trained on, as `servelab place` asks about it.
#ifndef SERVELAB_CLI_PLACE_SERVER_H_
#define SERVELAB_CLI_PLACE_SERVER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "baselines/shared/adapter_packing.h"
#include "engine/cli/place_adapters.h"
#include "engine/run/point.h"
#include "engine/spec/library.h"

namespace servelab {

// The least of what vLLM 0.8.5 takes as --max-lora-rank (vllm/config.py) that holds this rank,
// which is at most kMostVllmRank.
inline constexpr int kMostVllmRank = 512;
int vllm_rank(int rank);

class PlacedServer {
 public:
  // On so many GPUs, with these adapters.
  PlacedServer(const Predictor& predictor, const Library& library,
               const std::vector<NamedAdapter>& adapters, int gpus);
  PlacedServer(const PlacedServer&) = delete;
  PlacedServer& operator=(const PlacedServer&) = delete;

  const PointSettings& settings() const { return settings_; }

  // KV tokens beside so many slots of the rank that vLLM takes for this one; 0: does not start.
  std::int64_t kv_tokens(int slots, int rank) const;

  // The same server for a run of a placement of these adapters, each at its rate, with real
  // lengths.
  PointSettings run_as(const std::vector<NamedAdapter>& adapters, const Packing& packing,
                       std::int64_t seed) const;

 private:
  Spec spec_;
  PointSettings settings_;
  Workload workload_;
  ClusterSettings cluster_;
  std::optional<DeploymentView> view_;
};

}  // namespace servelab

#endif  // SERVELAB_CLI_PLACE_SERVER_H_
