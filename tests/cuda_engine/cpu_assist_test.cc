// LoRA that the host computes beside the device's steps, against the CPU engine in f32 and against
// the same adapters on the device.
#include <gmock/gmock.h>

#include "tests/cuda_engine/engine_testing.h"

namespace servelab {
namespace {

using namespace test;  // NOLINT: the tests' own words

// Both engines, and every adapter a second time on the host.
struct AssistedEngines : Engines {
  explicit AssistedEngines(const DevicePlan& plan) : Engines(plan) {
    for (const auto& weights : lora) on_host.push_back(cuda->host_adapter(weights));
  }
  std::vector<std::unique_ptr<DeviceAdapter>> on_host;
};

class CpuAssist : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    const std::string reason = no_device();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  DevicePlan plan(int threads = 2) const {
    DevicePlan plan = small_plan(GetParam());
    plan.host_threads = threads;
    return plan;
  }
  double allowed() const { return tolerance(GetParam()); }
};

// Where the adapter of a sequence is computed.
enum class Where { kCpuEngine, kDevice, kHost };

// Nine sequences, decodes and prefills of several lengths, adapters on both sides and the base
// model in between. `everywhere`: the side of those that are on the host else.
std::vector<Part> mixed_parts(const AssistedEngines& engines, Where everywhere) {
  std::vector<Part> parts;
  for (int i = 0; i < 9; ++i) {
    Part part;
    part.ids = prompt(engines.model, 3 + 3 * i, 10 + static_cast<std::uint64_t>(i));
    part.table = blocks(i * 7, 7);
    part.context = i % 2 == 0 ? 0 : part.ids.size() - 1;
    const auto which = static_cast<std::size_t>(i % 4);
    const bool host = i % 3 != 0;
    if (i == 4) {
      part.adapter = nullptr;
    } else if (everywhere == Where::kCpuEngine) {
      part.adapter = engines.on_cpu[which].get();
    } else if (host && everywhere == Where::kHost) {
      part.adapter = engines.on_host[which].get();
    } else {
      part.adapter = engines.on_cuda[which].get();
    }
    parts.push_back(part);
  }
  return parts;
}

std::vector<float> run_mixed(Executor* executor, const std::vector<Part>& parts,
                             const RunMode& mode) {
  for (const Part& part : parts) {
    if (part.context == 0) continue;
    Part before = part;
    before.context = 0;
    before.ids.pop_back();
    run(executor, {before}, mode);
  }
  return run(executor, parts, mode);
}

TEST_P(CpuAssist, AMixedBatchUnderEveryKernel) {
  const AssistedEngines engines(plan());
  const auto expected = run_mixed(engines.cpu.get(), mixed_parts(engines, Where::kCpuEngine), {});
  for (const LoraKernel kernel :
       {LoraKernel::kBgmv, LoraKernel::kMbgmv, LoraKernel::kSgmv, LoraKernel::kEinsum}) {
    RunMode mode;
    mode.kernel = kernel;
    const auto got = run_mixed(engines.cuda.get(), mixed_parts(engines, Where::kHost), mode);
    EXPECT_LT(difference(got, expected), allowed()) << name(kernel);
    const auto device = run_mixed(engines.cuda.get(), mixed_parts(engines, Where::kDevice), mode);
    EXPECT_LT(difference(got, device), allowed()) << name(kernel);
    EXPECT_NE(got, device) << "two computations that round differently";
  }
}

TEST_P(CpuAssist, SignalledAndSyncedCopiesGiveTheSameBits) {
  const AssistedEngines engines(plan());
  RunMode mode;
  const auto fused = run_mixed(engines.cuda.get(), mixed_parts(engines, Where::kHost), mode);
  mode.host_copy = HostCopy::kSynced;
  EXPECT_EQ(run_mixed(engines.cuda.get(), mixed_parts(engines, Where::kHost), mode), fused);
  mode.host_copy = HostCopy::kFused;
  EXPECT_EQ(run_mixed(engines.cuda.get(), mixed_parts(engines, Where::kHost), mode), fused);
}

// However the rows are shared, and whoever computes them.
TEST_P(CpuAssist, AnyNumberOfThreadsGivesTheSameBits) {
  std::vector<float> first;
  for (const int threads : {1, 2, 5}) {
    const AssistedEngines engines(plan(threads));
    const auto ids = prompt(engines.model, 77, 2);
    const auto got = prefill(engines.cuda.get(), ids, 200, engines.on_host[3].get(), blocks(0, 20));
    if (first.empty()) first = got;
    EXPECT_EQ(got, first) << threads << " threads";
  }
}

TEST_P(CpuAssist, ChunkedPrefillIsTheWhole) {
  const AssistedEngines engines(plan());
  const auto ids = prompt(engines.model, 77, 2);
  for (std::size_t i = 0; i < engines.on_host.size(); ++i) {
    const auto expected =
        prefill(engines.cpu.get(), ids, 200, engines.on_cpu[i].get(), blocks(0, 20));
    for (const std::size_t chunk : {200u, 7u, 64u, 76u}) {
      const auto got =
          prefill(engines.cuda.get(), ids, chunk, engines.on_host[i].get(), blocks(20, 20));
      EXPECT_LT(difference(got, expected), allowed()) << "adapter " << i << " chunk " << chunk;
    }
  }
}

// The way that CaraServe goes: the host prefills while the adapter loads, the device decodes.
TEST_P(CpuAssist, PrefilledOnTheHostAndDecodedOnTheDevice) {
  const AssistedEngines engines(plan());
  const auto ids = prompt(engines.model, 40, 5);
  for (std::size_t i = 0; i < engines.on_host.size(); ++i) {
    prefill(engines.cpu.get(), {ids.begin(), ids.end() - 1}, 200, engines.on_cpu[i].get(),
            blocks(0, 20));
    const auto expected =
        run(engines.cpu.get(), {{ids, 39, blocks(0, 20), engines.on_cpu[i].get()}});
    prefill(engines.cuda.get(), {ids.begin(), ids.end() - 1}, 16, engines.on_host[i].get(),
            blocks(0, 20));
    const auto got = run(engines.cuda.get(), {{ids, 39, blocks(0, 20), engines.on_cuda[i].get()}});
    EXPECT_LT(difference(got, expected), allowed()) << "adapter " << i;
  }
}

TEST_P(CpuAssist, AnAdapterOfSomeLayersOnly) {
  DevicePlan device = plan();
  const AssistedEngines engines(device);
  const auto ids = prompt(engines.model, 30, 4);
  for (const std::vector<std::string>& targets :
       {std::vector<std::string>{"k", "up"}, {"o"}, {"q", "v", "down"}}) {
    const auto narrow = random_adapter(engines.model, "narrow", 8, targets, 99);
    const auto on_cpu = engines.cpu->pack_adapter(*narrow, 0);
    const auto on_host = engines.cuda->host_adapter(narrow);
    const auto expected = prefill(engines.cpu.get(), ids, 200, on_cpu.get(), blocks(0, 20));
    // Beside an adapter that makes the host's work one of all layers.
    const auto alone = prefill(engines.cuda.get(), ids, 200, on_host.get(), blocks(0, 20));
    EXPECT_LT(difference(alone, expected), allowed());
    const auto both = run(engines.cuda.get(), {{ids, 0, blocks(0, 20), on_host.get()},
                                               {ids, 0, blocks(20, 20), engines.on_host[2].get()}});
    const auto vocab = static_cast<std::ptrdiff_t>(engines.model.vocab);
    EXPECT_LT(difference({both.begin(), both.begin() + vocab}, expected), allowed());
  }
}

// No device memory is needed at all: shapes, slots and places are the host's matter.
TEST_P(CpuAssist, AdaptersOfTheHostAlone) {
  DevicePlan device = plan();
  device.adapters = 0;
  const AssistedEngines engines(device);
  const auto base = engines.cpu->pack_adapter(*engines.lora[1], 0);
  const auto ids = prompt(engines.model, 25, 4);
  const auto expected = prefill(engines.cpu.get(), ids, 200, base.get(), blocks(0, 20));
  const auto got = prefill(engines.cuda.get(), ids, 200, engines.on_host[1].get(), blocks(0, 20));
  EXPECT_LT(difference(got, expected), allowed());
  EXPECT_EQ(engines.on_host[1]->bytes(), 0);
  EXPECT_EQ(engines.on_host[1]->rank(), 8);
}

// Decodes with host adapters run eagerly; those without are graphs before and after.
TEST_P(CpuAssist, OnlyStepsWithoutItAreGraphs) {
  const AssistedEngines engines(plan());
  cuda::CudaExecutor* const cuda = engines.cuda.get();
  for (const auto& adapter : engines.on_cuda) adapter->wait();
  const auto ids = prompt(engines.model, 9, 50);
  prefill(cuda, {ids.begin(), ids.end() - 1}, 200, nullptr, blocks(0, 9));
  const std::vector<Part> base = {{ids, 8, blocks(0, 9), nullptr}};
  const std::vector<Part> hosted = {{ids, 8, blocks(0, 9), engines.on_host[0].get()}};
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
  const AssistedEngines engines(device);
  const auto whole = generate(engines.cuda.get(), engines.on_host[2].get(), {1});
  const auto part = generate(engines.cuda.get(), engines.on_host[2].get(), {0.25, 1, 0.75});
  for (std::size_t step = 0; step < whole.size(); ++step) {
    EXPECT_LT(difference(part[step], whole[step]), allowed()) << "step " << step;
  }
}

TEST_P(CpuAssist, AdaptersComeAndGoBetweenSteps) {
  DevicePlan device = plan();
  device.host_lora = true;  // held ones are packed before they are asked for
  AssistedEngines engines(device);
  const auto ids = prompt(engines.model, 20, 61);
  std::vector<std::vector<float>> expected;
  for (const auto& adapter : engines.on_host) {
    expected.push_back(prefill(engines.cuda.get(), ids, 200, adapter.get(), blocks(0, 9)));
  }
  engines.on_host.clear();
  for (int round = 0; round < 8; ++round) {
    const auto i = static_cast<std::size_t>(round) % 4;
    if (round >= 4) engines.cuda->hold_on_host(engines.lora[i], 64);
    const auto adapter = engines.cuda->host_adapter(engines.lora[i]);
    EXPECT_EQ(prefill(engines.cuda.get(), ids, 200, adapter.get(), blocks(0, 9)), expected[i]);
  }
}

TEST_P(CpuAssist, WhatItRefuses) {
  DevicePlan device = plan();
  device.targets = {LinearLayer::kQ};
  const auto model = small_model();
  cuda::CudaExecutor executor(model, *random_weights(model, 1), device);
  StepPlan step;
  step.slices.push_back({RequestId{}, 1, LoraSite::kHost});
  EXPECT_EQ(executor.unsupported(step), nullptr);
  step.exec = Exec::kMerged;
  EXPECT_THAT(executor.unsupported(step), ::testing::HasSubstr("unmerged"));
  step.exec = Exec::kUnmerged;
  step.slices.push_back({RequestId{}, 1, LoraSite::kRemote});
  EXPECT_THAT(executor.unsupported(step), ::testing::HasSubstr("remote"));
  try {
    executor.host_adapter(random_adapter(model, "wide", 8, {"q", "gate"}, 1));
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
