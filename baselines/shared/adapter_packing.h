// Where adapters go (placement paper, 7 and 8.4): on plain numbers, so that `servelab place` and
// the cluster policies decide alike. Every method gives each adapter one GPU, and each GPU its
// A_max (slots) and its own S_max (the widest rank there), or says why there is no placement.
#ifndef SERVELAB_BASELINES_SHARED_ADAPTER_PACKING_H_
#define SERVELAB_BASELINES_SHARED_ADAPTER_PACKING_H_

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/core/ids.h"
#include "engine/predict/predictor.h"

namespace servelab {

// Adapters on a GPU at which its allocation is tested, and the values of A_max that are tried. A
// GPU with the last of them takes no more: no simulation that the models know had more.
inline constexpr std::array kTestingPoints = {8, 16, 32, 64, 96, 128, 160, 192, 256, 320, 384};

struct AdapterDemand {
  AdapterId id;
  int rank;
  double rate;  // requests/s
};

// KV tokens that a GPU has beside so many slots of that rank (T_max); 0: the server refuses.
using KvTokens = std::function<std::int64_t(int slots, int rank)>;

struct PackingProblem {
  std::vector<AdapterDemand> adapters;
  int gpus = 1;
  KvTokens kv_tokens;
};

struct PackedGpu {
  std::vector<AdapterId> adapters;  // ascending; none: the GPU is off
  int slots = 0;
  int slot_rank = 0;
  Features features{};      // of all of these, at the rates expected
  double tokens_per_s = 0;  // as predicted of them, where the method asks
  double starvation = 0;    // likewise: probability
};

struct Packing {
  std::vector<PackedGpu> gpus;
  std::string refused;  // why there is none, in one line; `gpus` is then empty
};

// Features of some adapters on one GPU, kept while more come. In one order of adding they are the
// same for the same adapters; methods add in an order of size and rate, not of ids.
class GpuFeatures {
 public:
  void add(const AdapterDemand& adapter);
  Features with_slots(int slots) const;
  int adapters() const { return count_; }
  int widest() const { return widest_; }
  double rate() const { return rate_sum_; }

 private:
  int count_ = 0, widest_ = 0;
  double rate_sum_ = 0, rate_mean_ = 0, rate_m2_ = 0;
  double size_mean_ = 0, size_m2_ = 0;
};

// Which of a predictor's models answer. Decisions are made as if all rates were higher by the share
// `margin`.
struct PackingModels {
  const Forest* throughput;
  const Forest* starvation;
  double margin = 0;

  Features raised(Features features) const;
  bool starves(const Features& features) const;  // at raised rates: more probable than not
};
// With the margins that the predictor was calibrated to. ProposedFast: rules_of.
PackingModels forests_of(const Predictor& predictor);
PackingModels rules_of(const Predictor& predictor);

struct GreedyOptions {
  bool retry_final = false;  // a failing final test tries the GPUs left
};

// PrioritySorting: sizes descending; of one size rates zigzag (highest, lowest, second highest,
// ...).
std::vector<AdapterDemand> priority_order(std::vector<AdapterDemand> adapters);

// Algorithms 1 and 2.
Packing pack_greedily(const PackingProblem& problem, const PackingModels& models,
                      const GreedyOptions& options = {});
// What is placed already stays where it is as far as the models let it: from a GPU that would
// starve, the adapters with the highest rates go until it does not; they, and new ones, go to the
// first GPU that takes them, of those in use first. `gpu_before`: of each adapter, -1 for a new
// one. Ours.
Packing pack_again(const PackingProblem& problem, const PackingModels& models,
                   const std::vector<int>& gpu_before);
// ProposedLat (8.4.4): each adapter to the GPU with the lowest rate; A_max = adapters there.
Packing pack_for_latency(const PackingProblem& problem, const PackingModels& models);
// MaxBase (8.4.1): a GPU is full when its adapters bring `most_requests_per_s`; A_max = adapters
// there times `slot_share`, rounded up (MaxBase*: a half).
Packing pack_by_backbone(const PackingProblem& problem, double most_requests_per_s,
                         double slot_share);
// Random (8.4.2): any GPU for each adapter, any A_max from 1 to the adapters there.
Packing pack_at_random(const PackingProblem& problem, std::uint64_t seed);

}  // namespace servelab

#endif  // SERVELAB_BASELINES_SHARED_ADAPTER_PACKING_H_
