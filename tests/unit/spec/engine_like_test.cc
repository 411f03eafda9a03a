// engine.like: an engine's settings and costs by name, what a spec overrides, and vLLM's memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <span>
#include <vector>

#include "engine/run/point.h"
#include "engine/run/spec_check.h"
#include "engine/spec/spec.h"
#include "tests/support/program.h"

namespace servelab {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kRest =
    "title: test\n"
    "hardware: h100-64g\n"
    "lora: {targets: [q, k, v, o, gate, up, down]}\n"
    "workload: {requests: 1, adapters: {count: 8, ranks: [8]}, arrivals: {rate: 5},\n"
    "           lengths: {source: fixed, prompt: 16, output: 4}}\n"
    "techniques: [vllm-lora]\n";

class EngineLike : public ::testing::Test {
 protected:
  Spec load(const std::string& text, const std::string& rest = kRest) {
    return load_spec(folder_.file("case.yaml", text + rest), SERVELAB_SOURCE_DIR "/experiments");
  }
  PointSettings point(const std::string& text) {
    const Spec spec = load(text);
    return resolve_point(spec, spec.positions.at(0), spec.techniques.at(0), 0);
  }
  std::string error_of(const std::string& text, const std::string& rest = kRest) {
    try {
      check_spec(load(text, rest), "", true);
      return "(no error)";
    } catch (const SpecError& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      return error.what();
    }
  }
  // 0: it does not start.
  std::int64_t kv_tokens(const std::string& engine, const std::string& model, int slots, int rank,
                         const std::string& more = "") {
    const PointSettings settings = point("model: " + model + "\nengine: {like: " + engine +
                                         ", adapter_slots: " + std::to_string(slots) +
                                         ", slot_rank: " + std::to_string(rank) + more + "}\n");
    const RunRecord record =
        run_point(settings, build_point_workload(settings, "").workload).record;
    if (record.invalid_reasons.empty()) return record.replicas.at(0).kv_blocks_total * 16;
    EXPECT_THAT(record.invalid_reasons.front(), HasSubstr("device memory is too small"));
    return 0;
  }

  test::TemporaryFolder folder_;
};

TEST_F(EngineLike, ASpecOverridesWhatItIsLike) {
  const PointSettings like = point("model: llama-3.1-8b\nengine: {like: vllm-0.8}\n");
  EXPECT_EQ(like.engine.limits.max_batch, 2048);
  EXPECT_TRUE(like.engine.slot_vocabulary);
  EXPECT_GT(like.hardware.engine_costs.adapter_us, 0);
  const PointSettings own =
      point("model: llama-3.1-8b\nengine: {max_batch: 64, like: vllm-0.8, slot_targets: [q]}\n");
  EXPECT_EQ(own.engine.limits.max_batch, 64);
  EXPECT_EQ(own.engine.slot_targets, std::vector<std::string>{"q"});
  EXPECT_EQ(own.engine.limits.max_batch_tokens, 2048);
  const PointSettings none = point("model: llama-3.1-8b\n");
  EXPECT_EQ(none.engine.limits.max_batch, 256);
  EXPECT_EQ(none.hardware.engine_costs.adapter_us, 0);
}

// Of a layer, by hand: 2 adapters of ranks 8 and 16 with 3 and 4 rows, 10 slots.
TEST_F(EngineLike, CostsAddUp) {
  BatchShape batch;
  batch.add_lora_rows(3, 5, 8);
  batch.add_lora_rows(4, 5, 16);
  batch.add_lora_adapter(8);
  batch.add_lora_adapter(16);
  batch.adapter_slots = 10;
  const auto layer_us = [&](const EngineCosts& costs, LoraKernel kernel = LoraKernel::kSgmv) {
    return costs.layer_us(batch, kernel);
  };
  EXPECT_DOUBLE_EQ(layer_us({.adapter_us = 2}), 4);
  EXPECT_DOUBLE_EQ(layer_us({.adapter_rank_us = 2}), 48);
  EXPECT_DOUBLE_EQ(layer_us({.token_us = 2}), 14);
  EXPECT_DOUBLE_EQ(layer_us({.pair_us = 2}), 28);
  EXPECT_DOUBLE_EQ(layer_us({.slot_us = 2}), 20);
  EXPECT_DOUBLE_EQ(layer_us({.einsum_us = 2}, LoraKernel::kEinsum), 2);
  EXPECT_DOUBLE_EQ(layer_us({.einsum_us = 2}), 0);
}

// What dLoRA's scheduler assumes of its engine (vllm/core/scheduler.py): 15 ms for a merged
// iteration of 7B on an A800, 27 ms for an unmerged one; here of 16 requests with 256 positions.
TEST_F(EngineLike, DloraArtifactsStepsAreItsSchedulers) {
  PointSettings settings = point("model: llama-2-7b\nengine: {like: dlora-artifact-assumed}\n");
  const EngineCosts costs = settings.hardware.engine_costs;
  const HostConstants host = settings.hardware.host;
  settings.hardware =
      load_hardware_profile(SERVELAB_SOURCE_DIR "/experiments/base/hardware/a800-80g.yaml");
  settings.hardware.engine_costs = costs;
  settings.hardware.host.step_us = host.step_us;
  EXPECT_EQ(settings.engine.limits.max_batch, 16);
  const auto cost = point_cost_model(settings, 1);
  BatchShape batch;
  batch.adapter_slots = 8;
  for (int i = 0; i < 16; ++i) {
    batch.add_slice(1, 256, true);
    batch.add_lora_rows(1, 256, 16);
    if (i < 8) batch.add_lora_adapter(16);
  }
  const StepCost merged = cost->step(batch, Exec::kMerged, LoraKernel::kEinsum);
  const StepCost mixed = cost->step(batch, Exec::kUnmerged, LoraKernel::kEinsum);
  EXPECT_NEAR(to_seconds(merged.total()), 0.015, 0.0001);
  EXPECT_NEAR(to_seconds(mixed.total()), 0.027, 0.0001);
  // Beside them, two calls through Ray.
  const PointSettings whole = point("model: llama-2-7b\nengine: {like: dlora-artifact}\n");
  EXPECT_DOUBLE_EQ(whole.hardware.host.step_us - host.step_us, 2 * 6350);
  EXPECT_DOUBLE_EQ(whole.hardware.engine_costs.einsum_us, costs.einsum_us);
  const StepCost other = cost->step(batch, Exec::kUnmerged, LoraKernel::kBgmv);
  EXPECT_LT(to_seconds(other.total()), 0.021) << "only einsum is as slow";
}

// A model that frameworks move to the device sends another one back first, both in pageable memory.
TEST_F(EngineLike, ModelsInPageableMemoryGoBothWays) {
  PointSettings settings = point("model: llama-2-7b\n");
  settings.hardware =
      load_hardware_profile(SERVELAB_SOURCE_DIR "/experiments/base/hardware/a800-80g.yaml");
  const auto cost = point_cost_model(settings, 1);
  const Bytes bytes{1'000'000'000};
  EXPECT_EQ(cost->load_model(LoadPath::kPinned, bytes), cost->host_to_device(bytes));
  EXPECT_NEAR(to_seconds(cost->load_model(LoadPath::kPageable, bytes)), 1 / 1.4 + 1 / 5.5, 1e-3);
  std::string rest = kRest;
  rest.replace(rest.find("[vllm-lora]"), 11,
               "[{technique: vllm-uniform, with: {model_copies: pageable}}]");
  EXPECT_THAT(error_of("model: llama-2-7b\n", rest), HasSubstr("copies"));
}

// With preloaded models a replica of vllm-uniform that has room for all of its own never loads one.
TEST_F(EngineLike, PreloadedModelsAreTheReplicasOwn) {
  for (const bool preloaded : {false, true}) {
    std::string rest = kRest;
    rest.replace(rest.find("[vllm-lora]"), 11,
                 std::string("[{technique: vllm-uniform, with: {resident_models: 2, preloaded: ") +
                     (preloaded ? "true}}]" : "false}}]"));
    rest.replace(rest.find("requests: 1,"), 12, "requests: 32,");
    const Spec spec =
        load("model: llama-2-7b\ncluster: {replicas: 4}\nengine: {max_batch: 16}\n", rest);
    const PointSettings settings =
        resolve_point(spec, spec.positions.at(0), spec.techniques.at(0), 0);
    const RunRecord record =
        run_point(settings, build_point_workload(settings, "").workload).record;
    std::int64_t loads = 0;
    for (const auto& replica : record.replicas) loads += replica.loads;
    EXPECT_EQ(loads == 0, preloaded) << loads;
  }
}

TEST_F(EngineLike, RefusesWhatItCannotBe) {
  EXPECT_THAT(error_of("model: llama-3.1-8b\nengine: {like: vllm-08}\n"),
              AllOf(HasSubstr("case.yaml:2:"), HasSubstr("vllm-0.8")));
  EXPECT_THAT(error_of("model: llama-3.1-8b\nengine: {like: [a]}\n"), HasSubstr("a name"));
  const std::string file = folder_.file(
      "mine.yaml", "summary: s\nsource: t\nengine: {max_batch: 2}\ncosts: {adapter_su: 1}\n");
  EXPECT_THAT(error_of("model: llama-3.1-8b\nengine: {like: " + file + "}\n"),
              AllOf(HasSubstr("mine.yaml:4:"), HasSubstr("adapter_us")));
}

TEST_F(EngineLike, RefusesProfiledBytesWithoutTheirSlots) {
  for (const char* lists : {"profiled_slots: [8, 4], profiled_bytes: [1, 2]",
                            "profiled_slots: [4], profiled_bytes: [1, 2]"}) {
    EXPECT_THAT(error_of("model: llama-3.1-8b\nengine: {" + std::string(lists) + "}\n"),
                AllOf(HasSubstr("engine.profiled_slots"), HasSubstr("ascend")));
  }
}

TEST_F(EngineLike, RefusesAdaptersWiderThanSlots) {
  EXPECT_THAT(error_of("model: llama-3.1-8b\nengine: {like: vllm-0.8, slot_rank: 4}\n"),
              AllOf(HasSubstr("rank 8"), HasSubstr("for rank 4"), HasSubstr("raise")));
}

struct KvTokens {
  int slots;
  std::int64_t tokens[6];
};

// KV tokens that vLLM 0.8.5 found room for on an H100 64 GB, by its own logs
// (FerranAgulloLopez/GPULLMAdapterOptimization@bae36e2dad, find_available_gpu_memory):
// {slots, then KV tokens of Llama-3.1-8B at ranks 8, 16, 32 and of Qwen2.5-7B; 0: out of memory}.
constexpr KvTokens kMeasured[] = {
    {8, {305104, 302000, 296352, 700816, 694848, 683472}},
    {16, {301520, 296000, 284944, 694848, 683472, 657616}},
    {32, {295232, 284176, 258176, 683472, 657616, 601664}},
    {64, {282640, 256640, 215104, 657616, 601664, 526992}},
    {96, {268384, 235584, 168064, 632384, 565744, 430432}},
    {128, {253568, 212032, 0, 601664, 526992, 346768}},
    {160, {243536, 187840, 0, 587328, 477168, 250432}},
    {192, {230976, 163456, 0, 565744, 430432, 165664}},
    {224, {217488, 138272, 0, 541024, 383632, 67136}},
    {256, {205888, 0, 0, 526992, 346768, 0}},
    {288, {191936, 0, 0, 501680, 296512, 0}},
    {320, {180160, 0, 0, 477168, 250432, 0}},
    {352, {166016, 0, 0, 455376, 202528, 0}},
    {384, {154240, 0, 0, 430432, 165664, 0}},
};

// How far KV tokens are from those that an engine's logs have; 0 of either: it did not start.
class KvErrors {
 public:
  void add(const std::string& what, std::int64_t measured, std::int64_t computed) {
    if ((measured == 0) != (computed == 0)) wrong_.push_back(what);
    refused_ += measured == 0 && computed == 0 ? 1 : 0;
    if (measured == 0 || computed == 0) return;
    const double error =
        std::abs(static_cast<double>(computed) / static_cast<double>(measured) - 1);
    sum_ += error;
    ++fits_;
    if (error <= most_) return;
    most_ = error;
    worst_ = what;
  }
  void expect(int fits, int refused) const {
    std::printf("%d settings that fit: mean error %.2f %%, largest %.2f %% (%s); %d refused\n",
                fits_, 100 * sum_ / fits_, 100 * most_, worst_.c_str(), refused_);
    EXPECT_EQ(fits_, fits);
    EXPECT_EQ(refused_, refused);
    EXPECT_THAT(wrong_, ::testing::IsEmpty()) << "settings that fit on one side only";
    EXPECT_LT(most_, 0.01);
  }

 private:
  std::vector<std::string> wrong_;
  std::string worst_;
  double sum_ = 0, most_ = 0;
  int fits_ = 0, refused_ = 0;
};

std::string setting(const std::string& model, int slots, int rank) {
  return model + ", " + std::to_string(slots) + " slots of rank " + std::to_string(rank);
}

TEST_F(EngineLike, KvTokensAreVllm08s) {
  KvErrors errors;
  for (const KvTokens& row : kMeasured) {
    for (int i = 0; i < 6; ++i) {
      const char* model = i < 3 ? "llama-3.1-8b" : "qwen2.5-7b";
      const int rank = 8 << (i % 3);
      errors.add(setting(model, row.slots, rank), row.tokens[i],
                 kv_tokens("vllm-0.8", model, row.slots, rank,
                           i < 3 ? "" : ", slot_vocabulary: false, max_model_len: 32768"));
    }
  }
  errors.expect(65, 19);
}

// KV blocks of 16 tokens that vLLM 0.5.0 found room for on an H100 64 GB, by its own logs (as
// above, memory_overhead); 0: no block, or out of memory. It ends in an error below 4,096 tokens.
struct KvBlocks {
  int slots, rank, blocks;
};
constexpr KvBlocks kMeasured7b[] = {
    {1, 8, 5146},    {1, 16, 5141},   {1, 32, 5131},   {32, 16, 4799},  {32, 32, 4407},
    {64, 16, 4367},  {64, 32, 3821},  {128, 8, 4302},  {128, 16, 3757}, {128, 32, 2514},
    {144, 32, 2165}, {160, 32, 1840}, {176, 32, 1491}, {192, 32, 1166}, {208, 32, 841},
    {216, 32, 667},  {224, 32, 492},  {232, 32, 342},  {236, 32, 198},  {240, 32, 167},
    {244, 32, 48},   {248, 32, 0},    {256, 8, 3597},  {256, 16, 2354}, {256, 32, 0},
    {384, 8, 2803},  {384, 16, 926},  {384, 32, 0},    {400, 16, 742},  {416, 16, 581},
    {432, 16, 397},  {436, 16, 278},  {440, 16, 272},  {444, 16, 242},  {448, 16, 212},
    {464, 16, 52},   {480, 16, 0},    {496, 16, 0},    {512, 8, 2160},  {512, 16, 0},
    {640, 8, 1492},  {640, 16, 0},    {768, 8, 698},   {784, 8, 564},   {800, 8, 494},
    {816, 8, 359},   {832, 8, 313},   {836, 8, 195},   {840, 8, 190},   {844, 8, 184},
    {848, 8, 155},   {864, 8, 109},   {880, 8, 0},     {896, 8, 0},
};
constexpr KvBlocks kMeasured13b[] = {
    {1, 8, 2322},   {1, 16, 2317},  {1, 32, 2307},  {32, 16, 1991}, {32, 32, 1677}, {64, 16, 1647},
    {64, 32, 1034}, {80, 32, 670},  {96, 32, 377},  {112, 32, 0},   {128, 8, 1598}, {128, 16, 985},
    {128, 32, 0},   {144, 16, 750}, {160, 16, 604}, {176, 16, 439}, {192, 16, 294}, {208, 16, 77},
    {224, 16, 0},   {240, 16, 0},   {256, 8, 867},  {256, 16, 0},   {256, 32, 0},   {272, 8, 742},
    {288, 8, 617},  {304, 8, 563},  {320, 8, 457},  {336, 8, 332},  {352, 8, 277},  {368, 8, 171},
    {384, 8, 117},  {384, 16, 0},   {512, 8, 0},    {512, 16, 0},   {640, 8, 0},    {768, 8, 0},
};

TEST_F(EngineLike, KvTokensAreVllm05s) {
  KvErrors errors;
  const auto add = [&](const char* model, std::span<const KvBlocks> rows) {
    for (const KvBlocks& row : rows) {
      const std::int64_t tokens = 16 * row.blocks;
      errors.add(setting(model, row.slots, row.rank), tokens < 4096 ? 0 : tokens,
                 kv_tokens("vllm-0.5", model, row.slots, row.rank));
    }
  };
  add("llama-2-7b", kMeasured7b);
  add("llama-2-13b", kMeasured13b);
  errors.expect(56, 34);
}

}  // namespace
}  // namespace servelab
