#include "engine/calibrate/profile_file.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/backend/cost/fitted_cost.h"
#include "engine/core/config_node.h"

namespace servelab {
namespace {

std::string comment(const std::string& heading) {
  std::string text = "# ";
  for (const char c : heading) {
    text += c;
    if (c == '\n') text += "# ";
  }
  return text + "\n";
}

// Six digits are more than any measurement has.
double rounded(double value) { return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr); }

void round_numbers(ConfigNode* node) {
  for (ConfigNode& item : node->items) round_numbers(&item);
  for (ConfigMember& member : node->members) round_numbers(&member.value);
  if (!node->is_scalar() || node->quoted) return;
  char* end = nullptr;
  const double value = std::strtod(node->scalar.c_str(), &end);
  if (*end == '\0' && value != std::floor(value)) {
    node->scalar = fmt::format("{}", rounded(value));
  }
}

std::string lines(const ConfigNode& map, const std::string& indent) {
  std::string text;
  for (const auto& [key, value] : map.members) {
    text += fmt::format("{}{}: {}\n", indent, key, canonical_json(value));
  }
  return text;
}

const char* copy_name(CopyKind kind) {
  switch (kind) {
    case CopyKind::kHostLoad:
      return "host_load";
    case CopyKind::kDiskLoad:
      return "disk_load";
    case CopyKind::kSwapIn:
      return "swap_in";
    case CopyKind::kSwapOut:
      return "swap_out";
  }
  return "";
}

FittedConstants without_host(FittedConstants c) {
  c.k0_us = c.k1_us = c.k2_us = c.k3_us = 0;
  return c;
}

std::string percent(double fraction) {
  return std::isfinite(fraction) ? fmt::format("{:.1f} %", 100 * fraction) : "-";
}

std::string kernel_line(const char* name, const KernelLine& line) {
  return fmt::format(
      "  {:6} decode step = {:.3f} us x work + {:.0f} us, R2 {:.3f}; LoRA alone = {:.3f} us x work "
      "+ "
      "{:.0f} us, R2 {:.3f} ({} rows)\n",
      name, line.alpha_us, line.beta_us, line.r2, line.lora_alpha_us, line.lora_beta_us,
      line.lora_r2, line.rows);
}

std::string host_lora_yaml(const HostLoraConstants& host) {
  if (host.chunk_rows == 0) return "";
  return fmt::format(
      "\n# CaraServe's c (4.2): up to so many rows one core has x A B before the device has x W.\n"
      "host_lora:\n  chunk_rows: {}\n",
      host.chunk_rows);
}

std::string lora_line(const char* name, const FittedLora& lora) {
  return fmt::format("  {:6} {:9.1f} {:9.3f} {:12.4f} {:13.3f} {:18.4f}\n", name, lora.fixed_us,
                     lora.row_us, lora.row_rank_us, lora.adapter_us, lora.adapter_rank_us);
}

}  // namespace

std::string profile_yaml(HardwareProfile profile, std::optional<PlacementConstants> paper,
                         const std::string& heading) {
  profile.cost_model = "fitted";
  ConfigNode node = effective_params(&profile);
  ConfigNode fitted = effective_params(&profile.fitted);
  for (ConfigNode* each : {&node, &fitted}) round_numbers(each);
  std::string text = comment(heading) + lines(node, "") + "\nfitted:\n" + lines(fitted, "  ");
  if (paper) {
    ConfigNode placement = effective_params(&*paper);
    round_numbers(&placement);
    text +=
        "\n# The placement paper's own model (its Equation 1), used by cost_model: placement.\n"
        "placement:\n" +
        lines(placement, "  ");
  }
  return text + host_lora_yaml(profile.host_lora);
}

std::string placement_yaml(const std::string& name, const std::string& heading) {
  return comment(heading) + "extends: " + name + "\nname: " + name +
         "-placement\ncost_model: placement\n";
}

std::string samples_csv(const CalibrationSamples& samples, const CalibrationFit& fit) {
  std::string text =
      "kind,kernel,decodes,context,prefills,prefill_tokens,prefill_pairs,sampled,lora_rows,"
      "adapters,"
      "max_rank,rank_sum,work,rank,bytes,requests,pending,pending_by_share,dense_us,attention_us,"
      "lora_us,total_us,fitted_us,placement_us\n";
  const FittedCostModel model(without_host(fit.fitted));
  PlacementConstants paper = fit.placement;
  paper.k1_us = paper.k2_us = paper.k3_us = 0;
  const PlacementCostModel placement(paper, fit.fitted, 1);
  for (const StepSample& s : samples.steps) {
    const BatchShape& b = s.shape;
    const std::int64_t context =
        b.decode_requests > 0 ? b.decode_context / b.decode_requests - 1 : 0;
    text += fmt::format(
        "step,{},{},{},{},{},{},{},{},{},{},{},{},,,,,,{:.2f},{:.2f},{:.2f},{:.2f},{:.2f},{:.2f}\n",
        name(s.kernel), b.decode_requests, context, b.prefill_requests, b.prefill_tokens,
        b.prefill_pairs, b.sampled, b.lora_tokens, b.lora_adapters, b.lora_max_rank,
        b.lora_rank_sum, lora_work(s.kernel, b).measure, s.dense_us, s.attention_us, s.lora_us,
        s.total_us(), static_cast<double>(model.step(b, s.exec, s.kernel).total()) / 1e3,
        static_cast<double>(placement.step(b, s.exec, s.kernel).total()) / 1e3);
  }
  for (const CopySample& s : samples.copies) {
    text += fmt::format("{},,,,,,,,,,,,,{},{},,,,,,,{:.2f},,\n", copy_name(s.kind), s.rank, s.bytes,
                        s.us);
  }
  for (const MergeSample& s : samples.merges) {
    text += fmt::format("{},,,,,,,,,,,,,{},,,,,,,,{:.2f},,\n", s.rank > 0 ? "merge" : "unmerge",
                        s.rank, s.us);
  }
  for (const CoreSample& s : samples.cores) {
    text += fmt::format("core,,,,,,,,{},,,,,{},,,,,,,,{:.2f},,\n", s.rows, s.rank, s.us);
  }
  for (const SchedulerSample& s : samples.scheduler) {
    text += fmt::format("scheduler,,,,,,,,,,,,,,,{:.3f},{:.3f},{:.3f},,,,{:.3f},{:.3f},\n",
                        s.requests, s.pending, s.pending_by_share, s.us, s.host_us);
  }
  return text;
}

std::string fit_table(const CalibrationSamples& samples, const CalibrationFit& fit) {
  std::string text = fmt::format("{:20} {:>5} {:>7} {:>14} {:>11}\n", "part", "rows", "R2",
                                 "held-out median", "P90");
  for (const FitQuality& q : fit.quality) {
    text += fmt::format("{:20} {:>5} {:>7.3f} {:>14} {:>11}\n", q.part, q.rows, q.r2,
                        percent(q.median_error), percent(q.p90_error));
  }
  const FittedConstants& c = fit.fitted;
  text +=
      fmt::format("\ndense: {:.0f} us at 1 token, {:.0f} us at {:.0f}; logits {:.0f} us a row\n",
                  c.dense_us.front(), c.dense_us.back(), c.token_knots.back(), c.logits_us.front());
  text += fmt::format(
      "attention: prefill {:.3f} ns per pair + {:.3f} us per token + {:.3f} ns per key + {:.2f} us "
      "per prompt; decode {:.2f} ns per key + {:.2f} us per request\n",
      c.prefill_pair_ns, c.prefill_token_us, c.prefill_key_ns, c.prefill_request_us,
      c.decode_key_ns, c.decode_request_us);
  text += "LoRA:   fixed us  us / row  us / row-rank  us / adapter  us / adapter-rank\n";
  for (const auto& kernel : kernels::kLoraKinds) text += lora_line(kernel.name, c.of(kernel.kind));
  text += fmt::format(
      "  prefill: {:.3f} us per row, {:.4f} us per row and rank, {:.4f} us per prompt and rank\n",
      c.lora_prefill_token_us, c.lora_prefill_rank_token_us, c.lora_prefill_adapter_rank_us);
  text += fmt::format("host: {:.1f} us per step + {:.3f} B + {:.4f} R_P + {:.4f} R_P A_B/A us\n",
                      c.k0_us, c.k1_us, c.k2_us, c.k3_us);
  text += fmt::format(
      "merge: {:.0f} us + {:.1f} us per rank, unmerge {:.1f} us; loads: host {:.0f} us + {:.2f} "
      "GB/s, "
      "disk {:.0f} us + {:.2f} GB/s; swap out {:.0f} us + {:.2f} GB/s\n",
      c.merge_us, c.merge_rank_us, c.unmerge_us, c.load_latency_us, c.load_bytes_per_s / 1e9,
      c.disk_latency_us, c.disk_bytes_per_s / 1e9, c.swap_out_latency_us,
      c.swap_out_bytes_per_s / 1e9);
  if (!samples.cores.empty()) {
    text += fmt::format("LoRA on the host: one core has {} rows of rank {} in time\n",
                        fit.chunk_rows, samples.cores.front().rank);
  }
  text += "CaraServe's models (paper: R2 0.96):\n" + kernel_line("bgmv", fit.bgmv) +
          kernel_line("mbgmv", fit.mbgmv);
  const PlacementConstants& p = fit.placement;
  text += fmt::format(
      "placement paper: K1 {:.3f} us, K2 {:.4f} us, K3 {:.4f} us, K4 {:.1f} us, K5 {:.0f} us, K6 "
      "{:.4f}, K7 {:.3f}\n",
      p.k1_us, p.k2_us, p.k3_us, p.k4_us, p.k5_us, p.k6, p.k7);
  return text + fmt::format("{} steps, {} copies, {} merges, {} scheduler runs measured\n",
                            samples.steps.size(), samples.copies.size(), samples.merges.size(),
                            samples.scheduler.size());
}

}  // namespace servelab
