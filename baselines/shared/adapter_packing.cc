#include "baselines/shared/adapter_packing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "engine/core/rng.h"

namespace servelab {
namespace {

constexpr double kStarved = 0.5;  // the class that is more probable

Packing refused(std::string why) {
  Packing packing;
  packing.refused = std::move(why);
  return packing;
}

void set_adapters(std::span<const AdapterDemand> adapters, PackedGpu* gpu) {
  gpu->adapters.clear();
  for (const AdapterDemand& adapter : adapters) gpu->adapters.push_back(adapter.id);
  std::sort(gpu->adapters.begin(), gpu->adapters.end());
}

void predict(const PackingModels& models, PackedGpu* gpu) {
  gpu->tokens_per_s = models.throughput->predict(gpu->features);
  gpu->starvation = models.starvation->predict(gpu->features);
}

// The next larger value of A_max, or 0.
int next_slots(int slots) {
  for (const int candidate : kTestingPoints) {
    if (candidate > slots) return candidate;
  }
  return 0;
}

bool is_testing_point(int adapters) {
  return std::find(kTestingPoints.begin(), kTestingPoints.end(), adapters) != kTestingPoints.end();
}

// What one GPU holds while Algorithm 1 fills it.
struct Filling {
  GpuFeatures all;
  std::size_t begin = 0;      // of the queue: its first adapter
  std::size_t committed = 0;  // adapters that passed a test
  PackedGpu gpu;
};

// Algorithm 2. Ties between A_max and the next one go up. No slots serve nothing, more than
// adapters hold nothing, and what the server refuses is no candidate. Changes `gpu` when it passes.
bool test_allocation(const GpuFeatures& all, const PackingModels& models, const KvTokens& kv_tokens,
                     PackedGpu* gpu) {
  PackedGpu best = *gpu;
  best.tokens_per_s = -1;
  for (const int candidate : {gpu->slots, next_slots(gpu->slots)}) {
    const int slots = std::min(candidate, all.adapters());
    if (slots == 0 || kv_tokens(slots, all.widest()) <= 0) continue;
    const Features features = all.with_slots(slots);
    const double tokens_per_s = models.throughput->predict(models.raised(features));
    if (tokens_per_s < best.tokens_per_s) continue;
    best.slots = slots;
    best.features = features;
    best.tokens_per_s = tokens_per_s;
  }
  if (best.tokens_per_s < 0 || models.starves(best.features)) return false;
  best.slot_rank = all.widest();
  *gpu = std::move(best);
  return true;
}

}  // namespace

void GpuFeatures::add(const AdapterDemand& adapter) {
  ++count_;
  widest_ = std::max(widest_, adapter.rank);
  rate_sum_ += adapter.rate;
  const double rate_step = adapter.rate - rate_mean_;
  rate_mean_ += rate_step / count_;
  rate_m2_ += rate_step * (adapter.rate - rate_mean_);
  const double size_step = adapter.rank - size_mean_;
  size_mean_ += size_step / count_;
  size_m2_ += size_step * (adapter.rank - size_mean_);
}

Features GpuFeatures::with_slots(int slots) const {
  const auto deviation = [this](double m2) {
    return count_ == 0 ? 0.f : static_cast<float>(std::sqrt(m2 / count_));
  };
  return {static_cast<float>(count_),  static_cast<float>(rate_sum_),  deviation(rate_m2_),
          static_cast<float>(widest_), static_cast<float>(size_mean_), deviation(size_m2_),
          static_cast<float>(slots)};
}

Features PackingModels::raised(Features features) const {
  constexpr std::size_t kRateSum = 1, kRateStd = 2;
  features[kRateSum] *= static_cast<float>(1 + margin);
  features[kRateStd] *= static_cast<float>(1 + margin);
  return features;
}

bool PackingModels::starves(const Features& features) const {
  return starvation->predict(raised(features)) > kStarved;
}

PackingModels forests_of(const Predictor& predictor) {
  return {&predictor.throughput, &predictor.starvation, predictor.margin};
}

PackingModels rules_of(const Predictor& predictor) {
  return {&predictor.throughput_rules, &predictor.starvation_rules, predictor.margin_rules};
}

std::vector<AdapterDemand> priority_order(std::vector<AdapterDemand> adapters) {
  std::sort(adapters.begin(), adapters.end(), [](const AdapterDemand& a, const AdapterDemand& b) {
    if (a.rank != b.rank) return a.rank > b.rank;
    return a.rate != b.rate ? a.rate > b.rate : a.id < b.id;
  });
  std::vector<AdapterDemand> ordered;
  ordered.reserve(adapters.size());
  for (std::size_t begin = 0, end = 0; begin < adapters.size(); begin = end) {
    while (end < adapters.size() && adapters[end].rank == adapters[begin].rank) ++end;
    std::size_t high = begin, low = end;
    while (high < low) {
      ordered.push_back(adapters[high++]);
      if (high < low) ordered.push_back(adapters[--low]);
    }
  }
  return ordered;
}

// The queue is a place in the sorted adapters: what a GPU gives back is what it took last, so that
// the head of the queue moves back to it.
Packing pack_greedily(const PackingProblem& problem, const PackingModels& models,
                      const GreedyOptions& options) {
  const std::vector<AdapterDemand> queue = priority_order(problem.adapters);
  Packing packing;
  std::size_t head = 0;
  while (head < queue.size()) {
    if (packing.gpus.size() == static_cast<std::size_t>(problem.gpus)) {
      return refused("starvation: " + std::to_string(queue.size() - head) + " of " +
                     std::to_string(queue.size()) + " adapters are left when all " +
                     std::to_string(problem.gpus) + " GPUs are full");
    }
    Filling filling;
    filling.begin = head;
    bool is_open = true;
    while (is_open && head < queue.size()) {
      filling.all.add(queue[head++]);
      const bool is_last = head == queue.size();
      if (!is_testing_point(filling.all.adapters()) && !is_last) continue;
      if (test_allocation(filling.all, models, problem.kv_tokens, &filling.gpu)) {
        filling.committed = head - filling.begin;
        is_open = filling.all.adapters() < kTestingPoints.back();
      } else {
        const bool is_final_test = is_last && !is_testing_point(filling.all.adapters());
        if (is_final_test && !options.retry_final) {
          return refused(
              "starvation: the last " + std::to_string(head - filling.begin - filling.committed) +
              " adapters do not pass the final test on GPU " + std::to_string(packing.gpus.size()) +
              " (`final: retry` tries the GPUs left)");
        }
        head = filling.begin + filling.committed;
        is_open = false;
      }
    }
    set_adapters(std::span(queue).subspan(filling.begin, filling.committed), &filling.gpu);
    if (filling.committed > 0) predict(models, &filling.gpu);
    packing.gpus.push_back(std::move(filling.gpu));
  }
  packing.gpus.resize(static_cast<std::size_t>(problem.gpus));
  return packing;
}

namespace {

// The GPUs of adapters by GPU, each with the slots that `slots_of` says.
Packing packed(const std::vector<std::vector<AdapterDemand>>& by_gpu,
               const std::function<int(int adapters)>& slots_of) {
  Packing packing;
  for (const std::vector<AdapterDemand>& adapters : by_gpu) {
    PackedGpu gpu;
    GpuFeatures all;
    for (const AdapterDemand& adapter : priority_order(adapters)) all.add(adapter);
    set_adapters(adapters, &gpu);
    gpu.slots = adapters.empty() ? 0 : slots_of(all.adapters());
    gpu.slot_rank = all.widest();
    gpu.features = all.with_slots(gpu.slots);
    packing.gpus.push_back(std::move(gpu));
  }
  return packing;
}

}  // namespace

namespace {

// The A_max with the highest throughput for these adapters, if they do not starve with it.
std::optional<PackedGpu> settle(const PackingProblem& problem, const PackingModels& models,
                                const std::vector<AdapterDemand>& adapters) {
  PackedGpu best;
  if (adapters.empty()) return best;
  if (adapters.size() > static_cast<std::size_t>(kTestingPoints.back())) return std::nullopt;
  GpuFeatures all;
  for (const AdapterDemand& adapter : priority_order(adapters)) all.add(adapter);
  best.slot_rank = all.widest();
  best.tokens_per_s = -1;
  int before = 0;
  for (const int point : kTestingPoints) {
    const int slots = std::min(point, all.adapters());
    if (slots == before) break;
    before = slots;
    if (problem.kv_tokens(slots, all.widest()) <= 0) continue;
    const Features features = all.with_slots(slots);
    const double tokens_per_s = models.throughput->predict(models.raised(features));
    if (tokens_per_s < best.tokens_per_s) continue;
    best.slots = slots;
    best.features = features;
    best.tokens_per_s = tokens_per_s;
  }
  if (best.tokens_per_s < 0 || models.starves(best.features)) return std::nullopt;
  predict(models, &best);
  set_adapters(adapters, &best);
  return best;
}

}  // namespace

Packing pack_again(const PackingProblem& problem, const PackingModels& models,
                   const std::vector<int>& gpu_before) {
  std::vector<std::vector<AdapterDemand>> by_gpu(static_cast<std::size_t>(problem.gpus));
  std::vector<AdapterDemand> homeless;
  for (std::size_t i = 0; i < problem.adapters.size(); ++i) {
    const int gpu = gpu_before[i];
    (gpu >= 0 && gpu < problem.gpus ? by_gpu[static_cast<std::size_t>(gpu)] : homeless)
        .push_back(problem.adapters[i]);
  }
  Packing packing;
  for (std::vector<AdapterDemand>& adapters : by_gpu) {
    std::stable_sort(
        adapters.begin(), adapters.end(),
        [](const AdapterDemand& a, const AdapterDemand& b) { return a.rate < b.rate; });
    std::optional<PackedGpu> gpu = settle(problem, models, adapters);
    for (; !gpu; gpu = settle(problem, models, adapters)) {
      homeless.push_back(adapters.back());
      adapters.pop_back();
    }
    packing.gpus.push_back(*std::move(gpu));
  }
  std::vector<std::size_t> order(by_gpu.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_partition(order.begin(), order.end(),
                        [&](std::size_t gpu) { return !by_gpu[gpu].empty(); });
  for (const AdapterDemand& adapter : priority_order(homeless)) {
    bool is_placed = false;
    for (const std::size_t at : order) {
      by_gpu[at].push_back(adapter);
      if (std::optional<PackedGpu> gpu = settle(problem, models, by_gpu[at])) {
        packing.gpus[at] = *std::move(gpu);
        is_placed = true;
        break;
      }
      by_gpu[at].pop_back();
    }
    if (!is_placed) {
      return refused("starvation: no GPU takes adapter " + std::to_string(index(adapter.id)) +
                     " beside what stays there");
    }
  }
  return packing;
}

Packing pack_for_latency(const PackingProblem& problem, const PackingModels& models) {
  std::vector<std::vector<AdapterDemand>> by_gpu(static_cast<std::size_t>(problem.gpus));
  std::vector<double> rate(by_gpu.size());
  for (const AdapterDemand& adapter : priority_order(problem.adapters)) {
    const auto to =
        static_cast<std::size_t>(std::min_element(rate.begin(), rate.end()) - rate.begin());
    by_gpu[to].push_back(adapter);
    rate[to] += adapter.rate;
  }
  Packing packing = packed(by_gpu, [](int adapters) { return adapters; });
  for (std::size_t i = 0; i < packing.gpus.size(); ++i) {
    PackedGpu& gpu = packing.gpus[i];
    if (gpu.adapters.empty()) continue;
    const std::string place =
        "GPU " + std::to_string(i) + " with " + std::to_string(gpu.adapters.size()) + " adapters";
    if (problem.kv_tokens(gpu.slots, gpu.slot_rank) <= 0) {
      return refused("memory: " + place + " has no room for as many slots");
    }
    if (models.starves(gpu.features)) {
      return refused("starvation: " + place + " is predicted to starve");
    }
    predict(models, &gpu);
  }
  return packing;
}

Packing pack_by_backbone(const PackingProblem& problem, double most_requests_per_s,
                         double slot_share) {
  std::vector<std::vector<AdapterDemand>> by_gpu(static_cast<std::size_t>(problem.gpus));
  std::size_t at = 0;
  double rate = 0;
  for (const AdapterDemand& adapter : problem.adapters) {
    if (!by_gpu[at].empty() && rate + adapter.rate > most_requests_per_s) {
      if (++at == by_gpu.size()) {
        return refused("starvation: the adapters bring more requests than " +
                       std::to_string(problem.gpus) + " GPUs take without adapters");
      }
      rate = 0;
    }
    by_gpu[at].push_back(adapter);
    rate += adapter.rate;
  }
  return packed(by_gpu, [slot_share](int adapters) {
    return static_cast<int>(std::ceil(slot_share * adapters));
  });
}

Packing pack_at_random(const PackingProblem& problem, std::uint64_t seed) {
  RngStream rng(seed, "placement");
  std::vector<std::vector<AdapterDemand>> by_gpu(static_cast<std::size_t>(problem.gpus));
  for (const AdapterDemand& adapter : problem.adapters) {
    by_gpu[static_cast<std::size_t>(rng.below(by_gpu.size()))].push_back(adapter);
  }
  return packed(by_gpu, [&rng](int adapters) {
    return 1 + static_cast<int>(rng.below(static_cast<std::uint64_t>(adapters)));
  });
}

}  // namespace servelab
