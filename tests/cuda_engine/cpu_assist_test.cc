// LoRA that the host computes beside the device's steps, against the CPU engine in f32 and against
// the same adapters on the device.
#include <gmock/gmock.h>

#include "tests/cuda_engine/engine_testing.h"

namespace servelab {
namespace {

using namespace test;  // NOLINT: the tests' own words

class CpuAssist : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    const std::string reason = no_device();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  DevicePlan plan(int threads = 2) const {
    DevicePlan plan = small_plan(GetParam());
    plan.lora.workers = threads;
    return plan;
  }
  double allowed() const { return tolerance(GetParam()); }
};

// Nine sequences, decodes and prefills of several lengths, adapters on both sides and the base
// model in between; two of three are computed at `site`, the others on the device. The prefixes of
// those that decode are computed alike.
std::vector<float> run_mixed(Device* device, LoraSite site, const StepMode& mode) {
  std::vector<Sequence> batch;
  for (int i = 0; i < 9; ++i) {
    const auto ids = prompt(device->model(), 3 + 3 * i, 10 + static_cast<std::uint64_t>(i));
    const std::size_t context = i % 2 == 0 ? 0 : ids.size() - 1;
    const AdapterId adapter = i == 4 ? kBaseModel : nth(static_cast<std::size_t>(i % 4));
    const LoraSite where = i % 3 != 0 ? site : LoraSite::kDevice;
    const auto table = blocks(i * 7, 7);
    if (context > 0) run(device, {sequence(but_last(ids), 0, table, adapter, where)}, mode);
    batch.push_back(sequence(ids, context, table, adapter, where));
  }
  return run(device, batch, mode);
}

TEST_P(CpuAssist, AMixedBatchUnderEveryKernel) {
  const Engines engines(plan());
  engines.hold();
  const auto expected = run_mixed(engines.cpu.get(), LoraSite::kDevice, {});
  for (const LoraKernel kernel : kAllLoraKernels) {
    StepMode mode;
    mode.kernel = kernel;
    const auto got = run_mixed(engines.cuda.get(), LoraSite::kHost, mode);
    EXPECT_LT(difference(got, expected), allowed()) << name(kernel);
    const auto device = run_mixed(engines.cuda.get(), LoraSite::kDevice, mode);
    EXPECT_LT(difference(got, device), allowed()) << name(kernel);
    EXPECT_NE(got, device) << "two computations that round differently";
  }
}

TEST_P(CpuAssist, AllCopiesGiveTheSameBits) {
  const Engines engines(plan());
  engines.hold();
  StepMode mode;
  const auto fused = run_mixed(engines.cuda.get(), LoraSite::kHost, mode);
  for (const HostCopy copy : {HostCopy::kSynced, HostCopy::kPageable}) {
    mode.host_copy = copy;
    EXPECT_EQ(run_mixed(engines.cuda.get(), LoraSite::kHost, mode), fused);
  }
  mode.host_copy = HostCopy::kFused;
  EXPECT_EQ(run_mixed(engines.cuda.get(), LoraSite::kHost, mode), fused);
}

// Whichever layer the device takes over at, under every kernel and copy: beside a decode and a
// prompt of its own, and rows of the base model behind.
TEST_P(CpuAssist, TheDeviceMayTakeOverAtAnyLayer) {
  const Engines engines(plan());
  ComesBefore<cuda::CudaDevice> device(engines.model, *engines.weights, plan());
  load(&device, nth(1), engines.lora[1], 64);
  device.hold({nth(2), 64}, engines.lora[2]);
  const auto ids = prompt(engines.model, 21, 5);
  const auto batch = [&](Device* on, LoraSite site, const StepMode& mode) {
    run(on, {sequence(but_last(ids), 0, blocks(0, 6), nth(1))}, StepMode{});
    DeviceJob job;
    job.mode = mode;
    job.wants_logits = true;
    job.sequences = {sequence(ids, ids.size() - 1, blocks(0, 6), nth(1)),
                     sequence(ids, 0, blocks(6, 6), nth(2), site),
                     sequence(ids, 0, blocks(12, 6), nth(1)),
                     sequence(ids, 0, blocks(18, 6), kBaseModel)};
    return run_job(on, job);
  };
  const std::vector<float> expected = batch(engines.cpu.get(), LoraSite::kDevice, {}).logits;
  const int layers = engines.model.layers;
  for (const LoraKernel kernel : kAllLoraKernels) {
    for (const HostCopy copy : {HostCopy::kFused, HostCopy::kSynced, HostCopy::kPageable}) {
      for (int layer = 0; layer <= layers; ++layer) {
        StepMode mode;
        mode.kernel = kernel;
        mode.host_copy = copy;
        mode.take_over = TakeOver::kLoaded;
        device.before(layer, [&](AdapterId id) { load(&device, id, engines.lora[2], 64); });
        const DeviceResult result = batch(&device, LoraSite::kHost, mode);
        EXPECT_EQ(result.host_layers, layer);
        EXPECT_LT(difference(result.logits, expected), allowed())
            << name(kernel) << " " << name(copy) << ", layer " << layer;
        if (layer < layers) device.evict(nth(2));
      }
    }
  }
}

// Several adapters move over together.
TEST_P(CpuAssist, TheDeviceTakesOverWhenAllHaveCome) {
  const Engines engines(plan());
  engines.hold();
  engines.wait();
  const auto expected = run_mixed(engines.cpu.get(), LoraSite::kDevice, {});
  StepMode mode;
  mode.take_over = TakeOver::kLoaded;
  EXPECT_LT(difference(run_mixed(engines.cuda.get(), LoraSite::kHost, mode), expected), allowed());
}

// However the rows are shared, and whoever computes them.
TEST_P(CpuAssist, AnyNumberOfThreadsGivesTheSameBits) {
  std::vector<float> first;
  for (const int threads : {1, 2, 5}) {
    const Engines engines(plan(threads));
    engines.hold();
    const auto ids = prompt(engines.model, 77, 2);
    const auto got = prefill(engines.cuda.get(), ids, 200, blocks(0, 20), nth(3), LoraSite::kHost);
    if (first.empty()) first = got;
    EXPECT_EQ(got, first) << threads << " threads";
  }
}

TEST_P(CpuAssist, ChunkedPrefillIsTheWhole) {
  const Engines engines(plan());
  engines.hold();
  const auto ids = prompt(engines.model, 77, 2);
  for (std::size_t i = 0; i < engines.lora.size(); ++i) {
    const auto expected = prefill(engines.cpu.get(), ids, 200, blocks(0, 20), nth(i));
    for (const std::size_t chunk : {200u, 7u, 64u, 76u}) {
      const auto got =
          prefill(engines.cuda.get(), ids, chunk, blocks(20, 20), nth(i), LoraSite::kHost);
      EXPECT_LT(difference(got, expected), allowed()) << "adapter " << i << " chunk " << chunk;
    }
  }
}

// The way that CaraServe goes: the host prefills while the adapter loads, the device decodes.
TEST_P(CpuAssist, PrefilledOnTheHostAndDecodedOnTheDevice) {
  const Engines engines(plan());
  engines.hold();
  const auto ids = prompt(engines.model, 40, 5);
  for (std::size_t i = 0; i < engines.lora.size(); ++i) {
    const std::vector<Sequence> last = {sequence(ids, 39, blocks(0, 20), nth(i))};
    prefill(engines.cpu.get(), but_last(ids), 200, blocks(0, 20), nth(i));
    const auto expected = run(engines.cpu.get(), last);
    prefill(engines.cuda.get(), but_last(ids), 16, blocks(0, 20), nth(i), LoraSite::kHost);
    EXPECT_LT(difference(run(engines.cuda.get(), last), expected), allowed()) << "adapter " << i;
  }
}

TEST_P(CpuAssist, AnAdapterOfSomeLayersOnly) {
  const Engines engines(plan());
  engines.hold();
  const auto ids = prompt(engines.model, 30, 4);
  std::size_t next = engines.lora.size();
  for (const std::vector<std::string>& targets :
       {std::vector<std::string>{"k", "up"}, {"o"}, {"q", "v", "down"}}) {
    const auto narrow = random_adapter(engines.model, "narrow", 8, targets, 99);
    const AdapterId id = nth(next++);
    load(engines.cpu.get(), id, narrow);
    engines.cuda->hold({id}, narrow);
    const auto expected = prefill(engines.cpu.get(), ids, 200, blocks(0, 20), id);
    const auto alone = prefill(engines.cuda.get(), ids, 200, blocks(0, 20), id, LoraSite::kHost);
    EXPECT_LT(difference(alone, expected), allowed());
    // Beside an adapter that makes the host's work one of all layers.
    const auto both =
        run(engines.cuda.get(), {sequence(ids, 0, blocks(0, 20), id, LoraSite::kHost),
                                 sequence(ids, 0, blocks(20, 20), nth(2), LoraSite::kHost)});
    const auto vocab = static_cast<std::ptrdiff_t>(engines.model.vocab);
    EXPECT_LT(difference({both.begin(), both.begin() + vocab}, expected), allowed());
  }
}

// No device memory is needed at all: shapes, slots and places are the host's matter.
TEST_P(CpuAssist, AdaptersOfTheHostAlone) {
  DevicePlan device = plan();
  device.adapters = 0;
  const Engines engines(device);
  engines.hold();
  const auto ids = prompt(engines.model, 25, 4);
  const auto expected = prefill(engines.cpu.get(), ids, 200, blocks(0, 20), nth(1));
  const auto got = prefill(engines.cuda.get(), ids, 200, blocks(0, 20), nth(1), LoraSite::kHost);
  EXPECT_LT(difference(got, expected), allowed());
}

// Decodes with host adapters run eagerly; those without are graphs before and after.
TEST_P(CpuAssist, OnlyStepsWithoutItAreGraphs) {
  const Engines engines(plan());
  engines.hold();
  engines.wait();
  cuda::CudaDevice* const cuda = engines.cuda.get();
  const auto ids = prompt(engines.model, 9, 50);
  prefill(cuda, but_last(ids), 200, blocks(0, 9));
  const std::vector<Sequence> base = {sequence(ids, 8, blocks(0, 9))};
  const std::vector<Sequence> hosted = {sequence(ids, 8, blocks(0, 9), nth(0), LoraSite::kHost)};
  const auto expected = run(cuda, base);
  EXPECT_EQ(run(cuda, base), expected);
  EXPECT_EQ(cuda->ran_graph(), device_records());
  const auto adapted = run(cuda, hosted);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(run(cuda, hosted), adapted);
    EXPECT_FALSE(cuda->ran_graph());
  }
  EXPECT_GT(difference(adapted, expected), 3 * allowed());
  EXPECT_EQ(run(cuda, base), expected);
  EXPECT_EQ(cuda->ran_graph(), device_records());
}

TEST_P(CpuAssist, OnAShareOfTheDevice) {
  DevicePlan device = plan();
  device.partitions = {find_accelerator("cuda")->partition(0)};
  const Engines engines(device);
  engines.hold();
  const auto whole = generate(engines.cuda.get(), nth(2), {1}, LoraSite::kHost);
  const auto part = generate(engines.cuda.get(), nth(2), {0.25, 1, 0.75}, LoraSite::kHost);
  for (std::size_t step = 0; step < whole.size(); ++step) {
    EXPECT_LT(difference(part[step], whole[step]), allowed()) << "step " << step;
  }
}

TEST_P(CpuAssist, AdaptersComeAndGoBetweenSteps) {
  for (const bool packed_before : {false, true}) {
    DevicePlan device = plan();
    device.host_lora = packed_before;
    const Engines engines(device);
    engines.hold();
    const auto ids = prompt(engines.model, 20, 61);
    std::vector<std::vector<float>> first(4);
    for (std::size_t round = 0; round < 8; ++round) {
      const auto got =
          prefill(engines.cuda.get(), ids, 200, blocks(0, 9), nth(round % 4), LoraSite::kHost);
      if (round < 4) first[round] = got;
      EXPECT_EQ(got, first[round % 4]);
    }
  }
}

TEST_P(CpuAssist, WhatItRefuses) {
  DevicePlan device = plan();
  device.targets = {LinearLayer::kQ};
  const auto model = small_model();
  device.host_lora = true;
  cuda::CudaDevice cuda(model, *random_weights(model, 1), device);
  StepPlan step;
  step.slices.push_back({RequestId{}, 1, LoraSite::kHost});
  EXPECT_EQ(cuda.unsupported(step), nullptr);
  step.exec = Exec::kMerged;
  EXPECT_THAT(cuda.unsupported(step), ::testing::HasSubstr("unmerged"));
  step.exec = Exec::kUnmerged;
  step.slices.push_back({RequestId{}, 1, LoraSite::kRemote});
  EXPECT_THAT(cuda.unsupported(step), ::testing::HasSubstr("remote"));
  try {
    cuda.hold({nth(0)}, random_adapter(model, "wide", 8, {"q", "gate"}, 1));
    FAIL() << "the plan has no gate";
  } catch (const SpecError& error) {
    EXPECT_STREQ(error.what(),
                 "adapter 'wide' changes layer 'gate', which lora.targets does not name");
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CpuAssist, ::testing::Values(DType::kBf16, DType::kF16),
                         [](const auto& info) { return kernels::name(info.param); });

}  // namespace
}  // namespace servelab
