// The forward pass of a Llama-family decoder over a mixed batch, as a row of kernels on one stream.
#include <algorithm>
#include <bit>
#include <optional>

#include "engine/backend/cuda/cuda_device.h"
#include "engine/core/check.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/lora.h"
#include "kernels/cuda/sampling.h"

namespace servelab::cuda {
namespace {

using kernels::DType;
using kernels::cuda::AttentionBatch;
using kernels::cuda::LoraTarget;
using Part = StepTimer::Part;

std::byte* row_of(void* data, int row, int width, DType type) {
  return static_cast<std::byte*>(data) +
         static_cast<std::size_t>(row) * static_cast<std::size_t>(width) * kernels::bytes_of(type);
}

}  // namespace

void CudaDevice::forward(const DeviceJob& job, std::span<const DeviceAdapter* const> adapters,
                         const DeviceAdapter* folded, DeviceResult* result) {
  if (job.sequences.empty()) return kv_.finish();
  SL_CHECK(job.sequences.size() <= static_cast<std::size_t>(plan_.limits.max_batch),
           "a step keeps max_batch");
  const auto* const copy = static_cast<const CudaAdapter*>(folded);
  folded_ = copy == nullptr ? nullptr : &copy->folded();
  const bool bucketed = StepInput::only_decodes(job.sequences);
  may_replay_ = job.may_replay;
  measure_ = job.measure_parts;
  if (job.mode.exec == Exec::kMerged || folded_ != nullptr) adapters = {};
  const StepShape& shape = input_->lay_out(job, adapters, bucketed);
  SL_CHECK(shape.rows <= StepInput::most_rows(plan_.limits), "a step keeps max_batch_tokens");
  const auto sampled = static_cast<std::size_t>(std::count_if(
      job.sequences.begin(), job.sequences.end(), [](const Sequence& s) { return s.samples; }));

  const StepStream::Confined confined = stream_.confine(job.mode.device_share);
  dense_->tune_for(stream_.multiprocessors());
  if (copy != nullptr) copy->hold(stream_.get(), part_.layers);
  list_hosted(job, adapters);
  take_over();
  std::optional<HostLora::Step> host;
  if (!input_->host().groups.empty()) {
    host.emplace(host_lora_.get(), input_->host(), job.mode.host_copy, stream_.get());
  }
  timer_.begin(stream_, measure_);
  send_input();
  launch(shape, job.sampling, bucketed);
  timer_.end();
  stream_.synchronize();
  if (host.has_value()) host->finish();
  kv_.settled();
  result->parts = timer_.read();
  result->host_layers = host_layers_;
  if (host_lora_ != nullptr) result->host_work = host_lora_->take_work();
  if (measure_ && bucketed && plan_.graphs) measure_again(shape, job.sampling, &result->parts);
  const auto* const tokens = reinterpret_cast<const std::int32_t*>(host_tokens_.get());
  result->sampled.assign(tokens, tokens + sampled);
  if (!job.wants_logits || sampled == 0) return;
  result->logits.resize(sampled * static_cast<std::size_t>(shapes_.vocab));
  check(cudaMemcpyAsync(result->logits.data(), act_.logits, result->logits.size() * sizeof(float),
                        cudaMemcpyDeviceToHost, stream_.get()),
        "copying logits to the host");
  stream_.synchronize();
}

void CudaDevice::send_input() {
  check(cudaMemcpyAsync(input_->device(), host_input_.get(), input_->used_bytes(),
                        cudaMemcpyHostToDevice, stream_.get()),
        "copying a step's input");
}

void CudaDevice::list_hosted(const DeviceJob& job, std::span<const DeviceAdapter* const> adapters) {
  const std::vector<const HostAdapter*>& hosts = input_->host_adapters();
  hosted_.assign(hosts.size(), kBaseModel);
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    if (job.sequences[i].lora != LoraSite::kHost) continue;
    const auto found = std::find(hosts.begin(), hosts.end(), adapters[i]);
    if (found == hosts.end()) continue;
    hosted_[static_cast<std::size_t>(found - hosts.begin())] = job.sequences[i].adapter;
  }
  may_take_over_ = !hosted_.empty() && job.mode.take_over != TakeOver::kNever;
  kernel_ = job.mode.kernel;
  host_layers_ = 0;
}

// Whether every rank says yes. All ask at the same place of the same step, and get the same answer
// from the sum of their votes: 1 or 0 each, which f32 adds exactly. Several ranks' streams have
// then come to their ends.
bool CudaDevice::all_ranks_say(bool yes) {
  if (seat_.collective == nullptr) return yes;
  auto* const vote = reinterpret_cast<float*>(host_votes_.get());
  *vote = yes ? 1 : 0;
  check(cudaMemcpyAsync(votes_, vote, sizeof(*vote), cudaMemcpyHostToDevice, stream_.get()),
        "giving a rank's vote");
  seat_.collective->sum(votes_, 1, stream_.get());
  check(cudaMemcpyAsync(vote, votes_, sizeof(*vote), cudaMemcpyDeviceToHost, stream_.get()),
        "counting the ranks' votes");
  stream_.synchronize();
  return *vote == static_cast<float>(seat_.shard.ranks);
}

// Where all that the host computes for has arrived, on every rank, lays the rest of the step out as
// the device's. Nothing on the stream may still be to read the input.
//
// An adapter comes to ranks at different times. The sums would be right if each rank switched by
// itself, wherever its part of x A B is computed; but the step would have no one number of layers
// on the host, and ranks would differ in what they put on their streams. So they vote before each
// layer, which costs a sum of one number and a wait for the stream, and switch when the last can.
bool CudaDevice::take_over() {
  if (!may_take_over_) return false;
  std::vector<const CudaAdapter*> here;  // arrived() keeps them for the step
  for (const AdapterId id : hosted_) {
    const DeviceAdapter* const adapter = arrived(id);
    if (adapter != nullptr) here.push_back(static_cast<const CudaAdapter*>(adapter));
  }
  if (!all_ranks_say(here.size() == hosted_.size())) return false;
  may_take_over_ = false;
  input_->take_over(here, kernel_);
  return true;
}

// As a graph where the step is one of decodes and nothing is on its way to it.
void CudaDevice::launch(const StepShape& shape, const SamplingOptions& sampling, bool bucketed) {
  ran_graph_ = false;
  if (!bucketed || !plan_.graphs || measure_ || !may_replay_ || !adapters_arrived()) {
    return pass(shape, sampling, &timer_);
  }
  const StepGraphs::Key key = graph_key(shape, sampling);
  if (!graphs_.seen(key)) return pass(shape, sampling, &timer_);
  if (!graphs_.has(key)) {
    graphs_.record(key, stream_.get(), [&] { pass(shape, sampling, nullptr); });
  }
  wait_for_all();
  graphs_.launch(key, stream_.get());
  ran_graph_ = true;
}

// The same step as a graph, which is how it is served, gives its total: its parts were measured
// with events between the kernels. Nothing changes by running it again.
void CudaDevice::measure_again(const StepShape& shape, const SamplingOptions& sampling,
                               StepParts* parts) {
  if (!may_replay_ || !adapters_arrived()) return;
  measure_ = false;
  for (int i = 0; i < 2; ++i) {
    launch(shape, sampling, true);
    if (ran_graph_) break;
  }
  timer_.begin(stream_, false);
  launch(shape, sampling, true);
  timer_.end();
  stream_.synchronize();
  measure_ = true;
  parts->total = timer_.read().total;
  parts->dense = std::max<TimeNs>(0, parts->total - parts->attention - parts->lora);
}

StepGraphs::Key CudaDevice::graph_key(const StepShape& shape,
                                      const SamplingOptions& sampling) const {
  const LoraPart& lora = shape.lora[0];
  const bool random = sampling.temperature > 0;
  return {static_cast<std::uint64_t>(shape.decodes),
          static_cast<std::uint64_t>(shape.decode_length),
          static_cast<std::uint64_t>(shape.lora_parts),
          static_cast<std::uint64_t>(lora.kind),
          static_cast<std::uint64_t>(lora.batch.width),
          static_cast<std::uint64_t>(lora.batch.distinct),
          static_cast<std::uint64_t>(lora.batch.max_segment_rows),
          merged_set_,
          std::bit_cast<std::uint64_t>(random ? sampling.temperature : 0.0),
          std::bit_cast<std::uint64_t>(random ? sampling.top_p : 0.0),
          stream_.place(),
          folded_ == nullptr ? 0 : std::bit_cast<std::uintptr_t>(folded_->front()[0])};
}

bool CudaDevice::adapters_arrived() const {
  const auto& all = input_->adapters();
  return std::all_of(all.begin(), all.end(), [](const CudaAdapter* a) { return a->arrived(); });
}

void CudaDevice::wait_for_all() {
  for (int layer = 0; layer < part_.layers; ++layer) wait_for_layer(layer);
}

// What other streams bring to this layer.
void CudaDevice::wait_for_layer(int layer) {
  if (kv_.copying()) kv_.hold(stream_.get(), layer);
  for (const CudaAdapter* adapter : input_->adapters()) {
    if (!adapter->arrived()) adapter->hold(stream_.get(), layer);
  }
}

const void* CudaDevice::matrix(int layer, Fused which) const {
  const auto l = static_cast<std::size_t>(layer);
  const auto i = static_cast<std::size_t>(which);
  if (folded_ != nullptr) return (*folded_)[l][i];
  return use_merged_[l][i] ? merged_[l][i] : weights_->layers[l].base[i];
}

void CudaDevice::multiply(int layer, Fused which, const void* x, const StepShape& shape,
                          DType y_type, void* y, bool add) {
  const auto [n, k] = shapes_.fused(which);
  check(dense_->multiply(plan_.type, x, k, matrix(layer, which), shape.rows, n, k, y_type, y, n,
                         add, stream_.get()),
        "a dense layer");
}

// Beside the matrix `which`, whose output `y` has rows as wide as all of it.
void CudaDevice::lora(int layer, Fused which, const void* x, const StepShape& shape, DType y_type,
                      void* y) {
  const auto [n, k] = shapes_.fused(which);
  for (int p = 0; p < shape.lora_parts; ++p) {
    LoraPart part = shape.lora[p];
    part.batch.y_type = y_type;
    LoraTarget targets[kernels::cuda::kMaxLoraTargets];
    int count = 0;
    for (const LinearLayer target : members(which)) {
      if (std::find(plan_.targets.begin(), plan_.targets.end(), target) == plan_.targets.end()) {
        continue;
      }
      const FusedPlace at = place_of(shapes_, target);
      targets[count++] = {adapters_->pairs(layer, target), k, at.rows,
                          row_of(row_of(y, part.row, n, y_type), 1, at.begin, y_type)};
    }
    if (count == 0) continue;
    check(kernels::cuda::lora(part.kind, part.batch, targets, count,
                              row_of(const_cast<void*>(x), part.row, k, plan_.type), k, n,
                              lora_workspace_, workspace_bytes_.lora, stream_.get()),
          "LoRA");
  }
}

// A linear layer with LoRA beside it. What the host computes begins as soon as x is known, and is
// added when it has come back.
void CudaDevice::linear(int layer, Fused which, const void* x, const StepShape& shape, DType y_type,
                        void* y, bool add, StepTimer* timer) {
  const bool host = !input_->host().groups.empty();
  if (host) host_lora_->send(layer, which, x);
  multiply(layer, which, x, shape, y_type, y, add);
  if (timer != nullptr) timer->lap(Part::kDense);
  lora(layer, which, x, shape, y_type, y);
  if (host) host_lora_->add(layer, which, y_type, y);
  if (timer != nullptr) timer->lap(Part::kLora);
}

void CudaDevice::attention(int layer, const StepShape& shape) {
  const StepInput& in = *input_;
  AttentionBatch batch;
  batch.table_stride = shape.table_stride;
  if (shape.decodes > 0) {
    batch.sequences = shape.decodes;
    batch.query_begin = in.decode_begin.device;
    batch.contexts = in.contexts.device;
    batch.block_tables = in.tables.device;
    batch.max_queries = 1;
    batch.max_length = shape.decode_length;
    const int splits = kernels::cuda::decode_splits(shape.decodes, shapes_.kv_heads,
                                                    shape.decode_length, stream_.multiprocessors());
    SL_CHECK(kernels::cuda::decode_workspace(shape.decodes, shapes_.heads, shapes_.head_dim,
                                             splits) <= workspace_bytes_.attention,
             "attention's workspace is as planned");
    check(kernels::cuda::decode_attention(kv_.cache(layer), batch, shapes_.heads, act_.y,
                                          shapes_.qkv, act_.a, shapes_.q, splits,
                                          attention_workspace_, stream_.get()),
          "attention of decodes");
  }
  if (shape.prefills == 0) return;
  batch.sequences = shape.prefills;
  batch.query_begin = in.prefill_begin.device;
  batch.contexts = in.contexts.device + shape.decodes;
  batch.block_tables =
      in.tables.device + static_cast<std::ptrdiff_t>(shape.decodes) * shape.table_stride;
  batch.max_queries = shape.prefill_queries;
  batch.max_length = shape.prefill_length;
  check(kernels::cuda::prefill_attention(
            kv_.cache(layer), batch, shapes_.heads,
            row_of(act_.y, shape.decodes, shapes_.qkv, plan_.type), shapes_.qkv,
            row_of(act_.a, shape.decodes, shapes_.q, plan_.type), shapes_.q, stream_.get()),
        "attention of prefills");
}

void CudaDevice::attention_block(int layer, const StepShape& shape, StepTimer* timer) {
  const LayerWeights& weights = weights_->layers[static_cast<std::size_t>(layer)];
  const StepInput& in = *input_;
  check(kernels::cuda::rms_norm(act_.x, weights.attention_norm,
                                static_cast<float>(part_.rms_norm_eps), shapes_.hidden, plan_.type,
                                act_.h, shape.rows, stream_.get()),
        "a norm");
  linear(layer, Fused::kQkv, act_.h, shape, plan_.type, act_.y, false, timer);
  check(kernels::cuda::rope_and_write_kv(kv_.cache(layer), act_.y, shapes_.qkv, shapes_.heads,
                                         weights.qkv_bias, in.positions.device, weights_->cos,
                                         weights_->sin, in.cache_rows.device, shape.rows,
                                         stream_.get()),
        "rotary embedding");
  attention(layer, shape);
  if (timer != nullptr) timer->lap(Part::kAttention);
  add_to_residual(layer, Fused::kO, shape, timer);
}

// x += a W^T, with the adapters' part. Of several ranks the first adds to the residual and the
// others begin anew, so that the sum over ranks holds it once.
void CudaDevice::add_to_residual(int layer, Fused which, const StepShape& shape, StepTimer* timer) {
  linear(layer, which, act_.a, shape, DType::kF32, act_.x, seat_.shard.rank == 0, timer);
  if (seat_.collective == nullptr) return;
  seat_.collective->sum(
      act_.x, static_cast<std::size_t>(shape.rows) * static_cast<std::size_t>(shapes_.hidden),
      stream_.get());
  if (timer != nullptr) timer->lap(Part::kDense);
}

void CudaDevice::ffn_block(int layer, const StepShape& shape, StepTimer* timer) {
  const LayerWeights& weights = weights_->layers[static_cast<std::size_t>(layer)];
  check(kernels::cuda::rms_norm(act_.x, weights.ffn_norm, static_cast<float>(part_.rms_norm_eps),
                                shapes_.hidden, plan_.type, act_.h, shape.rows, stream_.get()),
        "a norm");
  linear(layer, Fused::kGateUp, act_.h, shape, plan_.type, act_.y, false, timer);
  check(kernels::cuda::swiglu(plan_.type, act_.y, shapes_.ffn, act_.a, shape.rows, stream_.get()),
        "the gate");
  add_to_residual(layer, Fused::kDown, shape, timer);
}

// The final norm of the rows that sample, packed together, and the LM head. Several ranks each
// write their part of the vocabulary into zeros, and the sum is all logits.
void CudaDevice::head(const StepShape& shape, const SamplingOptions& sampling) {
  if (shape.sampled == 0) return;
  const cudaStream_t stream = stream_.get();
  check(kernels::cuda::gather_rows(act_.x, input_->sample_rows.device, shape.sampled,
                                   shapes_.hidden, act_.sampled_x, stream),
        "gathering rows");
  check(kernels::cuda::rms_norm(act_.sampled_x, weights_->final_norm,
                                static_cast<float>(part_.rms_norm_eps), shapes_.hidden, plan_.type,
                                act_.sampled_h, shape.sampled, stream),
        "a norm");
  const ShardRange part = vocab_range(model(), seat_.shard);
  const std::size_t count =
      static_cast<std::size_t>(shape.sampled) * static_cast<std::size_t>(shapes_.vocab);
  if (seat_.collective != nullptr) {
    check(cudaMemsetAsync(act_.logits, 0, count * sizeof(float), stream), "clearing logits");
  }
  check(dense_->multiply(plan_.type, act_.sampled_h, shapes_.hidden, weights_->lm_head,
                         shape.sampled, part.count, shapes_.hidden, DType::kF32,
                         act_.logits + part.begin, shapes_.vocab, false, stream),
        "the LM head");
  if (seat_.collective != nullptr) seat_.collective->sum(act_.logits, count, stream);
  choose(shape, sampling);
}

void CudaDevice::choose(const StepShape& shape, const SamplingOptions& sampling) {
  const cudaStream_t stream = stream_.get();
  if (sampling.temperature <= 0) {
    check(kernels::cuda::argmax(act_.logits, shape.sampled, shapes_.vocab, act_.tokens, stream),
          "choosing tokens");
  } else {
    check(kernels::cuda::sample_top_p(
              act_.logits, shape.sampled, shapes_.vocab, static_cast<float>(sampling.temperature),
              static_cast<float>(sampling.top_p), input_->uniforms.device, act_.tokens, stream),
          "sampling tokens");
  }
  check(cudaMemcpyAsync(host_tokens_.get(), act_.tokens,
                        static_cast<std::size_t>(shape.sampled) * sizeof(std::int32_t),
                        cudaMemcpyDeviceToHost, stream),
        "copying tokens to the host");
}

// Without a timer the step is being recorded: it is then for the launch to wait for other streams.
void CudaDevice::pass(const StepShape& shape, const SamplingOptions& sampling, StepTimer* timer) {
  check(kernels::cuda::embed(plan_.type, weights_->embedding, input_->ids.device, shape.rows,
                             shapes_.hidden, act_.x, stream_.get()),
        "embedding");
  for (int layer = 0; layer < part_.layers; ++layer) {
    if (may_take_over_) {
      host_lora_->settle(layer);
      if (layer > 0 && take_over()) {
        host_lora_->leave();
        send_input();
      }
    }
    if (!input_->host().groups.empty()) ++host_layers_;
    if (timer != nullptr) wait_for_layer(layer);
    attention_block(layer, shape, timer);
    ffn_block(layer, shape, timer);
  }
  head(shape, sampling);
  if (timer != nullptr) timer->lap(Part::kDense);
}

}  // namespace servelab::cuda
