// The cost of a step, as policies and the twin see it. A batch is described by aggregates, never by
// its requests, so that costing a step takes the same time whatever its batch.
#ifndef SERVELAB_SERVE_COST_H_
#define SERVELAB_SERVE_COST_H_

#include <array>
#include <cstdint>
#include <functional>

#include "engine/core/check.h"
#include "engine/core/units.h"
#include "engine/serve/plan.h"

namespace servelab {

// Sums over the slices of a step. A slice of one token with earlier context is a decode; any other
// is a prefill (chunk).
struct BatchShape {
  std::int64_t tokens = 0;   // new positions: rows of every dense GEMM
  std::int64_t sampled = 0;  // positions that need logits: rows of the LM head

  std::int64_t prefill_requests = 0;
  std::int64_t prefill_tokens = 0;
  std::int64_t prefill_pairs =
      0;  // (query, key) pairs: sum of n*c + n*(n+1)/2, c = earlier context
  std::int64_t prefill_context = 0;  // keys read: sum of c + n

  std::int64_t decode_requests = 0;
  std::int64_t decode_context = 0;  // keys read: sum of c + 1

  std::int64_t lora_tokens = 0;       // rows with an adapter on this device
  std::int64_t lora_rank_tokens = 0;  // sum over those rows of the adapter's rank
  std::int64_t lora_adapters = 0;     // distinct adapters among them
  std::int64_t lora_rank_sum = 0;     // sum of rank over the distinct adapters
  int lora_max_rank = 0;
  std::int64_t lora_decode_rows = 0;  // of lora_tokens: those of decodes
  std::int64_t lora_decode_rank = 0;  // sum over decode rows of the adapter's rank

  // Rows whose adapter the host computes (LoraSite::kHost): in none of the above but `tokens`.
  std::int64_t host_requests = 0;     // slices among them
  std::int64_t host_tokens = 0;       // rows
  std::int64_t host_rank_tokens = 0;  // sum over those rows of the adapter's rank
  std::int64_t host_adapters = 0;     // distinct adapters among them
  std::int64_t host_rank_sum = 0;     // sum of rank over the distinct adapters
  int host_max_rank = 0;

  std::int64_t waiting = 0;          // requests queued at the replica, outside the step
  std::int64_t served_adapters = 0;  // adapters of the workload
  std::int64_t adapter_slots = 0;    // that the replica has, filled or not; 0: without slots

  // One slice: `n` new positions after `context` earlier ones; `samples` when it ends in logits.
  // `padding` as of Slice: more positions of a prefill, more context of a decode.
  void add_slice(std::int64_t n, std::int64_t context, bool samples, std::int64_t padding = 0) {
    if (samples) ++sampled;
    if (n == 1 && context > 0) {
      ++tokens;
      ++decode_requests;
      decode_context += context + padding + 1;
    } else {
      n += padding;
      tokens += n;
      ++prefill_requests;
      prefill_tokens += n;
      prefill_pairs += n * context + n * (n + 1) / 2;
      prefill_context += context + n;
    }
  }
  void add_lora_rows(std::int64_t n, std::int64_t context, int rank) {
    lora_tokens += n;
    lora_rank_tokens += n * rank;
    if (n == 1 && context > 0) {
      ++lora_decode_rows;
      lora_decode_rank += rank;
    }
  }
  void add_lora_adapter(int rank) {
    ++lora_adapters;
    lora_rank_sum += rank;
    if (rank > lora_max_rank) lora_max_rank = rank;
  }
  void add_host_rows(std::int64_t n, int rank) {
    ++host_requests;
    host_tokens += n;
    host_rank_tokens += n * rank;
  }
  void add_host_adapter(int rank) {
    ++host_adapters;
    host_rank_sum += rank;
    if (rank > host_max_rank) host_max_rank = rank;
  }
};

// How an adapter gets from host memory to the device (`engine.load_path`).
enum class LoadPath : std::uint8_t {
  kPinned,    // one copy from pinned memory
  kLayers,    // the same bytes layer by layer: a step waits for the layer that it has come to
  kPageable,  // a framework's copy for each layer and matrix, from pageable memory
  kRebuild,   // the same, each joined to those that have come, which are then made one tensor anew;
              // the serving loop stands still (OnDemand in CaraServe's public code)
};
inline constexpr std::array kLoadPaths = {"pinned", "layers", "pageable", "rebuild"};

// What LoRA on the host adds to a forward pass.
struct HostLoraCost {
  TimeNs added = 0;
  TimeNs results = 0;  // of it: bringing results to the device, over a link that loads take as well
};

// Where a step's time goes. The parts add up to total().
struct StepCost {
  TimeNs dense = 0;  // GEMMs, norms, activations, LM head, sampling
  TimeNs attention = 0;
  TimeNs lora = 0;        // shrink and expand of unmerged adapters; what the host's part adds
  TimeNs collective = 0;  // tensor-parallel all-reduce
  TimeNs host = 0;        // per-step CPU work that the device waits for
  TimeNs total() const { return dense + attention + lora + collective + host; }
};

// What workers beside an engine did for a step's LoRA on the host.
struct HostWork {
  TimeNs data = 0;              // until inputs had come to them and results back, less computing
  TimeNs compute = 0;           // of the slowest worker, summed over matrices
  std::int32_t lost = 0;        // workers that ended or did not answer
  std::int32_t recomputed = 0;  // pieces of theirs that the engine computed itself
};

// Where the time of a finished step went.
struct StepTiming {
  TimeNs load_wait = 0;  // held back by loads in progress, before the step or between its layers
  TimeNs swap = 0;       // moving KV, as far as computing does not hide it
  TimeNs switching = 0;
  StepCost cost;
  int host_layers = 0;  // that some LoRA on the host was computed in
  HostWork host_work;
  TimeNs busy() const { return swap + switching + cost.total(); }
};

class CostModel {
 public:
  virtual ~CostModel() = default;

  // One forward pass over the batch. LoRA is charged only for Exec::kUnmerged, and only of rows
  // whose adapter the device computes.
  virtual StepCost step(const BatchShape& batch, Exec exec, LoraKernel kernel) const = 0;

  // Why this model cannot say what LoRA on the host costs, or null.
  virtual const char* no_host_lora() const {
    return "this cost model does not know what LoRA on the host costs";
  }
  // What it adds to that forward pass: to none of it where the device's own work hides it. Asked
  // for only where no_host_lora() is null.
  virtual HostLoraCost host_lora(const BatchShape& /*batch*/, HostCopy /*copy*/) const {
    SL_CHECK(false, "this cost model has no LoRA on the host");
    return {};
  }

  // What an engine does once, in a replica's first step.
  virtual TimeNs first_step() const { return 0; }

  // Folding one adapter of this rank into (or out of) the base weights.
  virtual TimeNs merge(int rank) const = 0;
  virtual TimeNs unmerge(int rank) const = 0;

  // Host-to-device and device-to-host copies of `bytes` (pinned memory, one stream).
  virtual TimeNs host_to_device(Bytes bytes) const = 0;
  virtual TimeNs device_to_host(Bytes bytes) const = 0;

  // Why this model cannot say what loads along a path cost, or null.
  virtual const char* no_load_path(LoadPath path) const {
    if (path == LoadPath::kPinned) return nullptr;
    return "this cost model knows one copy from pinned memory only (engine.load_path: pinned)";
  }
  // An adapter of `bytes`, from the start of its load until steps can use all of it. Asked for only
  // where no_load_path() is null.
  virtual TimeNs load(LoadPath /*path*/, Bytes bytes) const { return host_to_device(bytes); }
  // A whole model of `bytes`, on the pinned path (the weights that it replaces stay in host memory)
  // or the pageable one (they are copied back first). As load() asked for.
  virtual TimeNs load_model(LoadPath /*path*/, Bytes bytes) const { return host_to_device(bytes); }

  // Pieces (layers) in which KV that is swapped, and adapters on LoadPath::kLayers, are copied one
  // by one beside the step, each layer of which waits for its own; 1: the step waits for all.
  virtual int copy_pieces() const { return 1; }
};

// Cost models by model and by how many devices share it; what it returns lives as long as the run.
using CostModels = std::function<const CostModel&(ModelId model, int devices)>;

}  // namespace servelab

#endif  // SERVELAB_SERVE_COST_H_
