#include "engine/backend/ranks/messages.h"

#include <stdexcept>

namespace servelab::ranks {
namespace {

constexpr int kMostBatch = 1 << 20;
constexpr int kTypes = 3;
constexpr std::size_t kBytesOfBatchAdapter = 12;
constexpr std::size_t kBytesOfSlice = 25;  // with neither tokens nor blocks

void write_layers(const std::vector<LinearLayer>& layers, WireWriter* out) {
  out->u32(static_cast<std::uint32_t>(layers.size()));
  for (const LinearLayer layer : layers) out->u8(static_cast<std::uint8_t>(layer));
}

std::vector<LinearLayer> read_layers(WireReader* in) {
  std::vector<LinearLayer> layers(in->count(1, "layers"));
  for (LinearLayer& layer : layers) {
    layer = static_cast<LinearLayer>(in->choice(kLinearLayers, "a linear layer"));
  }
  return layers;
}

}  // namespace

WireWriter encode(const OpenRank& open) {
  WireWriter out;
  const DevicePlan& plan = open.plan;
  // Names every field, so that a new one does not compile until it is sent, or left out here:
  // device, cores and partitions are each rank's own, and `gemm` is the CPU engine's.
  [[maybe_unused]] const auto& [kv_blocks, block_tokens, max_batch, max_batch_tokens] = plan.limits;
  [[maybe_unused]] const auto& [limits, type, device, ranks, targets, adapters, widest_rank, padded,
                                adapter_bytes, whole_models, merges, graphs, host_lora,
                                host_threads, host_cores, gemm, partitions] = plan;
  out.text(open.model);
  out.i64(plan.limits.kv_blocks);
  out.i32(plan.limits.block_tokens);
  out.i32(plan.limits.max_batch);
  out.i32(plan.limits.max_batch_tokens);
  out.u8(static_cast<std::uint8_t>(plan.type));
  out.i32(plan.ranks);
  write_layers(plan.targets, &out);
  out.i32(plan.adapters);
  out.i32(plan.widest_rank);
  out.flag(plan.padded);
  out.i64(plan.adapter_bytes);
  out.flag(plan.whole_models);
  out.flag(plan.merges);
  out.flag(plan.graphs);
  out.flag(plan.host_lora);
  out.i32(plan.host_threads);
  out.i32(open.shard.rank);
  out.i32(open.shard.ranks);
  out.text(open.group);
  out.flag(open.shares);
  return out;
}

OpenRank decode_open(std::span<const std::byte> message) {
  WireReader in(message);
  OpenRank open;
  DevicePlan& plan = open.plan;
  open.model = in.text();
  plan.limits.kv_blocks = in.i64();
  if (plan.limits.kv_blocks < 1) damaged("no KV blocks");
  plan.limits.block_tokens = in.between(1, kMostBatch, "block_tokens");
  plan.limits.max_batch = in.between(1, kMostBatch, "max_batch");
  plan.limits.max_batch_tokens = in.between(1, kMostBatch, "max_batch_tokens");
  plan.type = static_cast<kernels::DType>(in.choice(kTypes, "an element type"));
  plan.ranks = in.between(1, kMostRanks, "ranks");
  plan.targets = read_layers(&in);
  plan.adapters = in.between(0, kMostBatch, "adapters");
  plan.widest_rank = in.between(0, kMostBatch, "widest_rank");
  plan.padded = in.flag();
  plan.adapter_bytes = in.i64();
  plan.whole_models = in.flag();
  plan.merges = in.flag();
  plan.graphs = in.flag();
  plan.host_lora = in.flag();
  plan.host_threads = in.between(0, kMostBatch, "host_threads");
  open.shard.rank = in.between(0, plan.ranks - 1, "a rank");
  open.shard.ranks = in.between(plan.ranks, plan.ranks, "ranks");
  open.group = in.text();
  open.shares = in.flag();
  in.end();
  return open;
}

WireWriter encode(const StepRequest& step) {
  WireWriter out;
  // As above: a new field must be sent.
  const StepMode& mode = step.mode;
  [[maybe_unused]] const auto& [exec, kernel, device_share, host_copy] = mode;
  [[maybe_unused]] const auto& [temperature, top_p, seed] = step.sampling;
  out.u8(static_cast<std::uint8_t>(step.mode.exec));
  out.u8(static_cast<std::uint8_t>(step.mode.kernel));
  out.f64(step.mode.device_share);
  out.u8(static_cast<std::uint8_t>(step.mode.host_copy));
  out.flag(step.mode.may_replay);
  out.flag(step.mode.measure_parts);
  out.f64(step.sampling.temperature);
  out.f64(step.sampling.top_p);
  out.u64(step.sampling.seed);
  out.u32(static_cast<std::uint32_t>(step.adapters.size()));
  for (const BatchAdapter& adapter : step.adapters) {
    out.u32(adapter.handle);
    out.u64(adapter.digest);
  }
  out.u32(static_cast<std::uint32_t>(step.slices.size()));
  for (const StepSlice& slice : step.slices) {
    out.i32(slice.context);
    out.ids(slice.tokens);
    out.ids(slice.blocks);
    out.u32(slice.adapter);
    out.flag(slice.samples);
    out.u64(slice.draw);
  }
  return out;
}

StepRequest decode_step(std::span<const std::byte> message) {
  WireReader in(message);
  StepRequest step;
  step.mode.exec = static_cast<Exec>(in.choice(2, "exec"));
  step.mode.kernel =
      static_cast<LoraKernel>(in.choice(kernels::kLoraKinds.size(), "a LoRA kernel"));
  step.mode.device_share = in.f64();
  step.mode.host_copy = static_cast<HostCopy>(in.choice(2, "host_copy"));
  step.mode.may_replay = in.flag();
  step.mode.measure_parts = in.flag();
  step.sampling.temperature = in.f64();
  step.sampling.top_p = in.f64();
  step.sampling.seed = in.u64();
  step.adapters.resize(in.count(kBytesOfBatchAdapter, "adapters"));
  for (BatchAdapter& adapter : step.adapters) {
    adapter.handle = in.u32();
    adapter.digest = in.u64();
  }
  step.slices.resize(in.count(kBytesOfSlice, "slices"));
  for (StepSlice& slice : step.slices) {
    slice.context = in.between(0, INT32_MAX, "a context");
    slice.tokens = in.ids();
    if (slice.tokens.empty()) damaged("a slice without tokens");
    slice.blocks = in.ids();
    slice.adapter = in.u32();
    slice.samples = in.flag();
    slice.draw = in.u64();
  }
  in.end();
  return step;
}

WireWriter encode(const StepReply& reply) {
  WireWriter out;
  for (const TimeNs part :
       {reply.parts.dense, reply.parts.attention, reply.parts.lora, reply.parts.total}) {
    out.i64(part);
  }
  out.ids(reply.sampled);
  out.u64(reply.state.changes);
  out.u64(reply.state.digest);
  return out;
}

StepReply decode_step_reply(std::span<const std::byte> message) {
  WireReader in(message);
  StepReply reply;
  for (TimeNs* part :
       {&reply.parts.dense, &reply.parts.attention, &reply.parts.lora, &reply.parts.total}) {
    *part = in.i64();
  }
  reply.sampled = in.ids();
  reply.state.changes = in.u64();
  reply.state.digest = in.u64();
  in.end();
  return reply;
}

WireWriter encode(const CopyRequest& request) {
  WireWriter out;
  out.u64(request.copy);
  out.i32(request.tokens);
  out.ids(request.blocks);
  return out;
}

CopyRequest decode_copy(std::span<const std::byte> message) {
  WireReader in(message);
  CopyRequest request;
  request.copy = in.u64();
  request.tokens = in.between(0, INT32_MAX, "tokens");
  request.blocks = in.ids();
  in.end();
  return request;
}

WireWriter encode(const PackRequest& request) {
  WireWriter out;
  out.u32(request.handle);
  out.i32(request.width);
  out.flag(request.whole_model);
  out.flag(request.held);
  out.u64(request.digest);
  out.text(request.name);
  return out;
}

PackRequest decode_pack(std::span<const std::byte> message) {
  WireReader in(message);
  PackRequest request;
  request.handle = in.u32();
  request.width = in.between(0, kMostBatch, "a width");
  request.whole_model = in.flag();
  request.held = in.flag();
  request.digest = in.u64();
  request.name = in.text();
  in.end();
  return request;
}

WireWriter encode_failure(Failure kind, const std::string& text) {
  WireWriter out;
  out.u8(static_cast<std::uint8_t>(kind));
  out.text(text);
  return out;
}

void throw_failure(const std::string& who, std::span<const std::byte> message) {
  WireReader in(message);
  const auto kind = static_cast<Failure>(in.choice(3, "a failure"));
  const std::string text = who + ": " + in.text();
  if (kind == Failure::kGroup) throw GroupError(text);
  if (kind == Failure::kInput) throw SpecError(text);
  throw std::runtime_error(text);
}

}  // namespace servelab::ranks
