#include "engine/backend/cost/hardware.h"

#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "engine/backend/cost/make_cost_model.h"
#include "engine/core/check.h"
#include "engine/core/config_node.h"

namespace servelab {
namespace {

constexpr double kMaxUs = 1e6;
constexpr double kMaxRate = 1e15;
constexpr double kTinyFraction = 1e-3;

}  // namespace

void GemmConstants::fields(ParamFields& f) {
  f.add("launch_us", &launch_us, "launch and drain of one GEMM").range(0, kMaxUs);
  f.add("wave_us", &wave_us, "fixed time of one wave of thread blocks").range(0, kMaxUs);
  f.add("compute_fraction", &compute_fraction, "of peak_flops").range(kTinyFraction, 1);
  f.add("sm_feed_bytes_per_s", &sm_feed_bytes_per_s, "operands into one SM").range(1, kMaxRate);
  f.add("bandwidth_fraction", &bandwidth_fraction, "of memory bandwidth").range(kTinyFraction, 1);
  f.add("split_us", &split_us, "reduction of a split-K GEMM").range(0, kMaxUs);
  f.add("throttle", &throttle, "slow-down of long GEMMs, 0.2 = 20 %").range(0, 1);
  f.add("throttle_half_us", &throttle_half_us, "compute time that feels half of it")
      .range(1e-3, kMaxUs);
}

void PrefillConstants::fields(ParamFields& f) {
  f.add("launch_us", &launch_us, "launch and drain").range(0, kMaxUs);
  f.add("cta_us", &cta_us, "fixed time of one thread block").range(0, kMaxUs);
  f.add("compute_fraction", &compute_fraction, "of peak_flops").range(kTinyFraction, 1);
  f.add("min_keys", &min_keys, "keys a query tile is charged at least").range(0, 1e6);
  f.add("bandwidth_fraction", &bandwidth_fraction, "of memory bandwidth").range(kTinyFraction, 1);
  f.add("tail_fraction", &tail_fraction, "of the longest thread block, not hidden").range(0, 1);
  f.add("append_ns", &append_ns, "KV append per token and KV head (first four)").range(0, kMaxUs);
}

void DecodeConstants::fields(ParamFields& f) {
  f.add("launch_us", &launch_us, "launch and drain").range(0, kMaxUs);
  f.add("cta_us", &cta_us, "fixed time of one thread block").range(0, kMaxUs);
  f.add("row_us", &row_us, "more of it per query head of a KV head").range(0, kMaxUs);
  f.add("bandwidth_fraction", &bandwidth_fraction, "of memory bandwidth").range(kTinyFraction, 1);
  f.add("stream_bytes_per_s", &stream_bytes_per_s, "KV into one thread block").range(1, kMaxRate);
  f.add("combine_us", &combine_us, "merging a split context").range(0, kMaxUs);
  f.add("request_ns", &request_ns, "metadata and KV append per request").range(0, kMaxUs);
  f.add("l2_speedup", &l2_speedup, "of a KV cache that stays in L2").range(1, 100);
  f.add("split_keys", &split_keys, "keys per part of a split context").range(1, 1e9);
  f.add("serial_fraction", &serial_fraction, "of the shorter part, not hidden").range(0, 1);
}

void AllReduceConstants::fields(ParamFields& f) {
  f.add("direct_us", &direct_us, "custom kernel, fixed").range(0, kMaxUs);
  f.add("direct_peer_us", &direct_peer_us, "custom kernel, per rank").range(0, kMaxUs);
  f.add("two_shot_us", &two_shot_us, "extra of its two-shot form").range(0, kMaxUs);
  f.add("direct_bytes_per_s", &direct_bytes_per_s, "custom kernel, per rank").range(1, kMaxRate);
  f.add("ring_us", &ring_us, "NCCL, fixed").range(0, kMaxUs);
  f.add("ring_peer_us", &ring_peer_us, "NCCL, per rank").range(0, kMaxUs);
  f.add("ring_bytes_per_s", &ring_bytes_per_s, "NCCL bus bandwidth").range(1, kMaxRate);
  f.add("direct_limit_bytes", &direct_limit_bytes, "larger messages take NCCL").range(0, 1e12);
}

void ElementwiseConstants::fields(ParamFields& f) {
  f.add("launch_us", &launch_us, "launch and drain").range(0, kMaxUs);
  f.add("bandwidth_fraction", &bandwidth_fraction, "of memory bandwidth").range(kTinyFraction, 1);
}

void LoraConstants::fields(ParamFields& f) {
  f.add("pair_us", &pair_us, "one shrink + expand, fixed").range(0, kMaxUs);
  f.add("bandwidth_fraction", &bandwidth_fraction, "rank-aware kernels").range(kTinyFraction, 1);
  f.add("padded_bandwidth_fraction", &padded_bandwidth_fraction, "bgmv").range(kTinyFraction, 1);
  f.add("compute_fraction", &compute_fraction, "of peak_flops").range(kTinyFraction, 1);
}

void HostConstants::fields(ParamFields& f) {
  f.add("step_us", &step_us, "CPU time per step").range(0, kMaxUs);
  f.add("sequence_us", &sequence_us, "CPU time per request in the step").range(0, kMaxUs);
}

void HostLoraConstants::fields(ParamFields& f) {
  f.add("cores", &cores, "that compute LoRA").range(1, 1 << 16);
  chunk_field(f);
  f.add("core_flops", &core_flops, "products of one core, per second").range(1e6, kMaxRate);
  f.add("core_bytes_per_s", &core_bytes_per_s, "A and B into one core").range(1e6, kMaxRate);
  f.add("signal_us", &signal_us, "one side's signal, until the other sees it").range(0, kMaxUs);
  f.add("sync_us", &sync_us, "idle time of the device at a wait of the host").range(0, kMaxUs);
}

void HostLoraConstants::chunk_field(ParamFields& f) {
  f.add("chunk_rows", &chunk_rows, "rows of a prompt that one core takes").range(1, 1 << 16);
}

void CopyConstants::fields(ParamFields& f) {
  f.add("pageable_to_device_bytes_per_s", &pageable_to_device_bytes_per_s, "pageable memory to it")
      .range(1e6, kMaxRate);
  f.add("pageable_to_host_bytes_per_s", &pageable_to_host_bytes_per_s, "the device to such memory")
      .range(1e6, kMaxRate);
  f.add("call_us", &call_us, "one blocking call, before its bytes").range(0, kMaxUs);
  f.add("cache_release_us", &cache_release_us, "giving cached memory back").range(0, kMaxUs);
}

void HardwareProfile::fields(ParamFields& f) {
  f.add("name", &name, "the device").required();
  f.add("generation", &generation, "whose kernels it runs")
      .one_of({"ampere", "hopper", "cpu"})
      .required();
  f.add("cost_model", &cost_model, "whose sections give the time of a step")
      .one_of(Registry<CostModelKind>::instance().names());
  f.add("memory_bytes", &memory_bytes, "device memory").range(1e6, 1e15).required();
  f.add("peak_flops", &peak_flops, "dense bf16 FLOP/s").range(1e9, 1e18).required();
  f.add("memory_bytes_per_s", &memory_bytes_per_s, "memory bandwidth").range(1e9, 1e15).required();
  f.add("sm_count", &sm_count, "streaming multiprocessors").range(1, 4096).required();
  f.add("l2_bytes", &l2_bytes, "L2 cache").range(1, 1e12).required();
  f.add("host_link_bytes_per_s", &host_link_bytes_per_s, "PCIe, one direction")
      .range(1e6, kMaxRate)
      .required();
  f.add("host_link_fraction", &host_link_fraction, "of it that pinned copies reach")
      .range(kTinyFraction, 1)
      .required();
  f.add("host_link_latency_us", &host_link_latency_us, "of one copy").range(0, kMaxUs).required();
  f.add("source", &source, "where the numbers come from").required();
}

double EngineCosts::layer_us(const BatchShape& batch, LoraKernel kernel) const {
  const auto rows = static_cast<double>(batch.lora_tokens);
  const auto adapters = static_cast<double>(batch.lora_adapters);
  return adapter_us * adapters + adapter_rank_us * static_cast<double>(batch.lora_rank_sum) +
         token_us * rows + pair_us * rows * adapters +
         slot_us * static_cast<double>(batch.adapter_slots) +
         (kernel == LoraKernel::kEinsum ? einsum_us : 0);
}

void EngineCosts::fields(ParamFields& f) {
  constexpr double kMaxUs = 1e6;
  f.add("adapter_us", &adapter_us, "of a layer, per distinct adapter").range(0, kMaxUs);
  f.add("adapter_rank_us", &adapter_rank_us, "of a layer, per rank of each").range(0, kMaxUs);
  f.add("token_us", &token_us, "of a layer, per row with an adapter").range(0, kMaxUs);
  f.add("pair_us", &pair_us, "of a layer, per row with an adapter and distinct adapter")
      .range(0, kMaxUs);
  f.add("slot_us", &slot_us, "of a layer, per slot, in steps with any adapter").range(0, kMaxUs);
  f.add("waiting_us", &waiting_us, "of a step, per waiting request").range(0, kMaxUs);
  f.add("load_us", &load_us, "of an adapter's load, before its bytes").range(0, 60 * kMaxUs);
  f.add("first_step_us", &first_step_us, "once, in a replica's first step").range(0, 60 * kMaxUs);
  f.add("einsum_us", &einsum_us, "of a layer, its calls of einsum (LoRA kernel einsum only)")
      .range(0, kMaxUs);
}

ConfigNode HardwareProfile::effective() {
  ConfigNode node = effective_params(this);
  node.set("engine_costs", effective_params(&engine_costs));
  for (const ProfileSection& section : costs->sections(this)) {
    if (!section.is_left_out) node.set(section.name, section.fields.values());
  }
  return node;
}

namespace {

// A profile may say `extends: NAME` and give only what differs from that one.
ConfigNode read_profile(const std::string& path, const ProfileFinder& find, int depth) {
  constexpr int kMaxDepth = 8;
  ConfigNode node = parse_yaml_file(path);
  const ConfigNode* base = node.find("extends");
  if (base == nullptr) return node;
  if (!base->is_scalar() || depth == kMaxDepth) {
    throw SpecError(base->mark,
                    "'extends' must name another profile, and not go round in a circle");
  }
  ConfigNode merged = read_profile(find(base->scalar, base->mark), find, depth + 1);
  std::erase_if(node.members, [](const auto& member) { return member.key == "extends"; });
  merge_over(&merged, node);
  return merged;
}

// Calls visit(cost_model, section) for every section of every cost model.
template <class Visit>
void for_each_section(Visit visit) {
  const Registry<CostModelKind>& kinds = Registry<CostModelKind>::instance();
  for (const std::string& name : kinds.names()) {
    HardwareProfile scratch;
    const auto kind = kinds.make(name);
    for (const ProfileSection& section : kind->sections(&scratch)) visit(name, section);
  }
}

// A file must give every constant: a default would be a number without a source.
void read_section(const ConfigNode& settings, const ProfileSection& section) {
  const std::string where = "hardware section '" + section.name + "'";
  section.fields.bind(settings, where);
  for (const ParamField& field : section.fields.all()) {
    if (settings.find(field.name()) == nullptr) {
      throw SpecError(settings.mark,
                      where + " needs '" + field.name() + "' (" + field.help() + ")");
    }
  }
}

// One file may serve several cost models, but what another may lack must not be ignored here.
void check_unread(const ConfigNode& node, const std::set<std::string>& unread) {
  std::map<std::string, std::string> models;  // by section, those that it belongs to
  for_each_section([&](const std::string& cost_model, const ProfileSection& section) {
    if (!section.is_left_out || !unread.contains(section.name)) return;
    std::string& list = models[section.name];
    list += (list.empty() ? "" : ", ") + cost_model;
  });
  for (const auto& [section, list] : models) {
    const ConfigNode* const settings = node.find(section);
    if (settings == nullptr) continue;
    throw SpecError(settings->mark,
                    "'" + section + "' belongs to profiles with cost_model: " + list);
  }
}

}  // namespace

std::string profile_beside(const std::string& name, const SourceMark& where) {
  const auto path = std::filesystem::path(where.file).parent_path() / (name + ".yaml");
  if (std::filesystem::exists(path)) return path.string();
  throw SpecError(where, "'extends' names '" + name + "', but there is no " + path.string());
}

HardwareProfile load_hardware_profile(const std::string& path, const ProfileFinder& find) {
  const ConfigNode node = read_profile(path, find, 0);
  std::set<std::string> unread;  // sections
  for_each_section([&](const auto&, const auto& section) { unread.insert(section.name); });
  HardwareProfile profile;
  bind_params(node, "hardware", &profile, {unread.begin(), unread.end()});
  profile.costs = Registry<CostModelKind>::instance().make(profile.cost_model);
  for (const ProfileSection& section : profile.costs->sections(&profile)) {
    unread.erase(section.name);
    if (const ConfigNode* settings = node.find(section.name)) {
      read_section(*settings, section);
    } else if (!section.is_left_out) {
      throw SpecError(node.mark, "hardware needs the section '" + section.name + "'");
    }
  }
  check_unread(node, unread);
  profile.costs->check(profile, node);
  if (profile.source.empty()) {
    throw SpecError(SourceMark{path, 1, 1}, "'source' must say where the numbers come from");
  }
  return profile;
}

}  // namespace servelab
