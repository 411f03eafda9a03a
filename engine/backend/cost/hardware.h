// What a device can do: its data sheet, and per operator family the few constants that say how much
// of it a real kernel reaches. Files: experiments/base/hardware/*.yaml; the fitted parts come from
// data/fit_hardware.py and engine/backend/cost/op_cost.h says how each constant is used.
// Times are microseconds and rates are per second, as their names say; a *_fraction is the share of
// the data sheet's peak that is reached, in (0, 1].
//
// `cost_model` says which sections a profile has (CostModelKind): roofline needs those from gemm to
// host, fitted and placement those that `servelab calibrate` writes. host_lora may be left out; a
// calibrated profile has nothing but its chunk_rows.
#ifndef SERVELAB_BACKEND_COST_HARDWARE_H_
#define SERVELAB_BACKEND_COST_HARDWARE_H_

#include <functional>
#include <memory>
#include <string>

#include "engine/backend/cost/fitted_constants.h"
#include "engine/core/config_node.h"
#include "engine/core/params.h"
#include "engine/core/units.h"
#include "engine/serve/cost.h"

namespace servelab {

struct GemmConstants {
  double launch_us = 3;               // kernel launch and drain, once per GEMM
  double wave_us = 2;                 // prologue and epilogue of one wave of thread blocks
  double compute_fraction = 0.9;      // of peak_flops, in a tile's inner loop
  double sm_feed_bytes_per_s = 6e10;  // operands into one SM's shared memory
  double bandwidth_fraction = 0.8;    // of memory_bytes_per_s
  double split_us = 1;                // extra reduction of a split-K GEMM
  double throttle = 0;                // slow-down of long GEMMs (power), 0.2 = 20 %
  double throttle_half_us = 300;      // compute time at which half of it is felt
  void fields(ParamFields& f);
};

struct PrefillConstants {
  double launch_us = 9;
  double cta_us = 1.5;              // a thread block's fixed work (load queries, write output)
  double compute_fraction = 0.6;    // of peak_flops
  double min_keys = 64;             // keys that a query tile is charged at least
  double bandwidth_fraction = 0.7;  // of memory_bytes_per_s
  double tail_fraction = 0.5;       // share of the longest thread block that nothing overlaps
  double append_ns = 2;             // KV cache append: per token and KV head (the first four)
  void fields(ParamFields& f);
};

struct DecodeConstants {
  double launch_us = 11;
  double cta_us = 3;                 // a thread block's fixed work
  double row_us = 0.03;              // more of it for each query head that shares the KV head
  double bandwidth_fraction = 0.8;   // of memory_bytes_per_s
  double stream_bytes_per_s = 5e10;  // keys and values into one thread block
  double combine_us = 4;             // merging the parts of a split context
  double request_ns = 10;            // per request: metadata and KV cache append
  double l2_speedup = 1;             // of a KV cache that stays in L2 (benchmarks only)
  double split_keys = 200;           // keys that a part of a split context has at least
  double serial_fraction = 0.5;      // share of the shorter of fixed work and streaming not hidden
  void fields(ParamFields& f);
};

struct AllReduceConstants {
  double direct_us = 5;         // vLLM's custom kernel: every rank reads its peers
  double direct_peer_us = 0.1;  // per rank
  double two_shot_us = 4;       // extra synchronisation of reduce-scatter + all-gather
  double direct_bytes_per_s = 1e11;
  double ring_us = 30;      // NCCL
  double ring_peer_us = 1;  // per rank
  double ring_bytes_per_s = 1e11;
  double direct_limit_bytes = 2097152;  // larger messages take NCCL
  void fields(ParamFields& f);
};

struct ElementwiseConstants {
  double launch_us = 3;
  double bandwidth_fraction = 0.5;
  void fields(ParamFields& f);
};

struct LoraConstants {
  double pair_us = 35;                     // one shrink + expand, before any data moves
  double bandwidth_fraction = 0.9;         // rank-aware kernels (mbgmv, sgmv, einsum)
  double padded_bandwidth_fraction = 0.7;  // bgmv
  double compute_fraction = 0.25;          // of peak_flops, thin tiles on tensor cores
  void fields(ParamFields& f);
};

// CPU time of the serving engine that the device waits for.
struct HostConstants {
  double step_us = 600;     // per step
  double sequence_us = 40;  // per request in the step
  void fields(ParamFields& f);
};

// The host's part of LoRA that is not on the device (engine/backend/cost/host_lora_cost.h). A
// section that a profile may leave out: such a device refuses LoRA on the host.
struct HostLoraConstants {
  int cores = 0;                // that compute LoRA; 0: the profile has no such section
  int chunk_rows = 0;           // rows of a prompt that one core takes (CaraServe's c); 0: unknown
  double core_flops = 0;        // products of one core, per second
  double core_bytes_per_s = 0;  // A and B into one core
  double signal_us = 0;         // one side's word that its data are there, until the other sees it
  double sync_us =
      0;  // native copies: the device idles while the host sees the copy's end and launches
  void fields(ParamFields& f);
  void chunk_field(ParamFields& f);
};

// Of a calibrated profile's section host_lora: engines compute with it, and its twin, which needs
// the rest, refuses LoRA on the host.
struct ChunkRowsOnly {
  HostLoraConstants* host;
  void fields(ParamFields& f) { host->chunk_field(f); }
};

// Copies as frameworks make them by default: from and to pageable memory, each a blocking call. A
// section that a profile may leave out: such a device loads from pinned memory only.
struct CopyConstants {
  double pageable_to_device_bytes_per_s = 0;  // 0: the profile has no such section
  double pageable_to_host_bytes_per_s = 0;
  double call_us = 0;           // of one such copy or operation, before its bytes
  double cache_release_us = 0;  // giving cached memory back to the driver: host and device wait
  void fields(ParamFields& f);
};

// What an engine takes beside its kernels: of its generation, not of the device (`engine.like`).
// Those of steps, LoRA's of one layer, are none where steps were measured whole (cost_model fitted,
// placement); the last two are of any engine but the placement paper's.
struct EngineCosts {
  double adapter_us = 0;       // per distinct adapter
  double adapter_rank_us = 0;  // per rank of each
  double token_us = 0;         // per row with an adapter
  double pair_us = 0;          // per row with an adapter and distinct adapter
  double slot_us = 0;          // per slot, in steps with any adapter
  double waiting_us = 0;       // of a step, per waiting request
  double load_us = 0;          // of an adapter's load, before its bytes
  double first_step_us = 0;    // once, in a replica's first step
  double einsum_us = 0;        // LoraKernel::kEinsum: its calls, whatever they compute
  double layer_us(const BatchShape& batch, LoraKernel kernel) const;
  void fields(ParamFields& f);
};

class CostModelKind;  // engine/backend/cost/make_cost_model.h

struct HardwareProfile {
  std::string name;
  std::string generation =
      "ampere";  // which kernels: FlashAttention 2 and its tiles, or 3 (hopper); cpu
  std::string cost_model = "roofline";
  std::int64_t memory_bytes = 0;
  double peak_flops = 0;  // dense bf16
  double memory_bytes_per_s = 0;
  int sm_count = 0;
  std::int64_t l2_bytes = 0;
  double host_link_bytes_per_s = 0;  // PCIe, one direction
  double host_link_fraction = 0.8;
  double host_link_latency_us = 10;
  std::string source;  // data sheet and fits, in words

  GemmConstants gemm;
  PrefillConstants prefill;
  DecodeConstants decode;
  AllReduceConstants all_reduce;
  ElementwiseConstants elementwise;
  LoraConstants lora;
  HostConstants host;
  HostLoraConstants host_lora;
  CopyConstants copies;
  EngineCosts engine_costs;              // none of a file's: a spec's `engine.like` sets them
  FittedConstants fitted;                // cost_model fitted and placement
  std::shared_ptr<CostModelKind> costs;  // of a loaded profile: what `cost_model` names

  void fields(ParamFields& f);  // the top level only
  bool is_hopper() const { return generation == "hopper"; }
  ConfigNode effective();  // of a loaded profile: every setting, sections included
};

// Where the profile is that another `extends` by name; throws SpecError at the mark of the name.
using ProfileFinder = std::function<std::string(const std::string& name, const SourceMark&)>;
// NAME.yaml beside the profile that names it.
std::string profile_beside(const std::string& name, const SourceMark& where);

// Reads and checks one file; SpecError with file, line and column on a bad one.
HardwareProfile load_hardware_profile(const std::string& path,
                                      const ProfileFinder& find = profile_beside);

}  // namespace servelab

#endif  // SERVELAB_BACKEND_COST_HARDWARE_H_
