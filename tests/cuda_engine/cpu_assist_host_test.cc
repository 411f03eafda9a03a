// The parts of LoRA on the host, and how it fails: on the device on the host, where signals are as
// late as they may be and the device can be made to fail.
#include <gmock/gmock.h>

#include <csignal>
#include <cstdint>

#include "engine/backend/cuda/collective.h"
#include "engine/backend/device/tensor_parallel.h"
#include "tests/cuda_engine/engine_testing.h"
#include "tests/cuda_engine/host_device.h"
#include "tests/support/lora_workers.h"

namespace servelab {
namespace {

using namespace test;  // NOLINT: the tests' own words

DevicePlan assisted_plan() {
  DevicePlan plan = small_plan(DType::kBf16);
  plan.lora.workers = 2;
  return plan;
}

// On the host, on the device, and on the host again.
std::vector<Sequence> some_of_both(const ModelConfig& model) {
  const auto ids = prompt(model, 9, 6);
  return {sequence(ids, 0, blocks(0, 9), nth(1), LoraSite::kHost),
          sequence(ids, 0, blocks(9, 9), nth(2)),
          sequence(ids, 0, blocks(18, 9), nth(3), LoraSite::kHost)};
}

// The device fails after any amount of work, or refuses any launch: the step says so, nobody is
// left waiting, and where the device comes back the next step is right.
TEST(CudaHostLoraFails, ADeviceThatFailsIsAnErrorOfTheStep) {
  const Engines engines(assisted_plan());
  engines.hold();
  Device* const cuda = engines.cuda.get();
  const std::vector<Sequence> batch = some_of_both(engines.model);
  const auto expected = run(cuda, batch, StepMode{});
  StepMode mode;
  for (int at = 0; at < 90; at += at < 9 ? 1 : 9) {
    for (const bool calls : {false, true}) {
      for (const HostCopy copy : {HostCopy::kFused, HostCopy::kSynced}) {
        mode.host_copy = copy;
        calls ? host_device::fail_after_calls(at) : host_device::fail_after_work(at);
        EXPECT_THROW(run(cuda, batch, mode), SpecError) << at << (calls ? " calls" : " work");
        host_device::mend();
        ASSERT_EQ(run(cuda, batch, mode), expected) << at << (calls ? " calls" : " work");
      }
    }
  }
}

// The threads find no memory for their sums: the step ends, and says why.
TEST(CudaHostLoraFails, AHostThatFailsIsAnErrorOfTheStep) {
  const Engines engines(assisted_plan());
  engines.hold();
  Device* const cuda = engines.cuda.get();
  const auto ids = prompt(engines.model, 9, 6);
  const std::vector<Sequence> batch = {sequence(ids, 0, blocks(0, 9), nth(1), LoraSite::kHost)};
  for (const HostCopy copy : {HostCopy::kFused, HostCopy::kSynced}) {
    StepMode mode;
    mode.host_copy = copy;
    try {
      host_device::refuse_memory_of(4096);
      run(cuda, batch, mode);
      host_device::refuse_memory_of(SIZE_MAX);
      ADD_FAILURE() << "there was no memory";
    } catch (const SpecError& error) {
      host_device::refuse_memory_of(SIZE_MAX);
      EXPECT_THAT(error.what(), ::testing::HasSubstr("out of memory: LoRA on the host"));
    }
  }
  const auto expected = prefill(engines.cpu.get(), ids, 200, blocks(0, 9), nth(1));
  EXPECT_LT(difference(run(cuda, batch), expected), tolerance(DType::kBf16));
}

// A host that fails before the devices take over: the step goes on to its end, on every rank, since
// the others wait for each at every sum; then it is an error, and the next step is right.
TEST(CudaHostLoraFails, BeforeTheDeviceTakesOverToo) {
  for (const int ranks : {1, 2}) {
    ModelConfig model = small_model();
    model.vocab = 104;
    model.ffn = 512;
    constexpr int kTokens = 7;
    const auto weights = random_weights(model, 7);
    DevicePlan plan = assisted_plan();
    plan.ranks = ranks;
    std::vector<ComesBefore<cuda::CudaDevice>*> devices(static_cast<std::size_t>(ranks));
    std::vector<std::shared_ptr<cuda::Collective>> seats(devices.size());
    if (ranks > 1) {
      auto made = cuda::make_collectives(ranks, 0);
      std::move(made.begin(), made.end(), seats.begin());
    }
    std::vector<MakeRank> makers;
    for (std::size_t r = 0; r < devices.size(); ++r) {
      const cuda::RankSeat seat{{static_cast<int>(r), ranks}, seats[r]};
      makers.emplace_back([&, r, seat] {
        auto made = std::make_unique<ComesBefore<cuda::CudaDevice>>(model, *weights, plan, seat);
        devices[r] = made.get();
        return made;
      });
    }
    TensorParallelDevice replica(model, plan.limits, makers, nullptr);
    const auto lora = random_adapter(model, "a", 16, all_targets(), 1);
    replica.hold({nth(0), 64}, lora);
    load(&replica, nth(0), lora, 64);
    DeviceJob job;
    job.mode.take_over = TakeOver::kLoaded;
    job.sequences = {sequence(prompt(model, kTokens, 6), 0, blocks(0, 9), nth(0), LoraSite::kHost)};
    const auto run_from = [&](int layer) {
      for (auto* const device : devices) device->before(layer, nullptr);
      return run_job(&replica, job);
    };
    const DeviceResult expected = run_from(0);
    // A worker's sums for the gate, the largest matrices: more than a sum over the ranks takes.
    host_device::refuse_memory_of(sizeof(float) * kTokens *
                                  static_cast<std::size_t>(model.ffn / ranks));
    EXPECT_THROW(run_from(1), SpecError) << ranks << " ranks";
    host_device::refuse_memory_of(SIZE_MAX);
    const DeviceResult result = run_from(1);
    EXPECT_EQ(result.host_layers, 1);
    EXPECT_LT(difference(result.logits, expected.logits), tolerance(DType::kBf16));
  }
}

// Torn down while the device is gone and its work is lost.
TEST(CudaHostLoraFails, AnEngineEndsAfterItsDevice) {
  for (const int at : {0, 3, 17, 40}) {
    {
      const Engines engines(assisted_plan());
      engines.hold();
      host_device::fail_after_work(at);
      EXPECT_THROW(run(engines.cuda.get(), some_of_both(engines.model)), SpecError);
    }
    host_device::mend();
  }
}

// Workers that are processes compute the same bits as threads, whichever way rows come to them,
// also where one of them is killed.
TEST(CudaHostLora, ProcessesGiveTheBitsOfThreads) {
  const Engines threads(assisted_plan());
  threads.hold();
  DevicePlan plan = small_plan(DType::kBf16);
  plan.lora = lora_workers(HostLoraBy::kProcesses, 2);
  plan.lora.rows_per_worker = assisted_plan().lora.rows_per_worker;
  const Engines processes(plan);
  processes.hold();
  const std::vector<Sequence> batch = some_of_both(threads.model);
  for (const HostCopy copy : {HostCopy::kFused, HostCopy::kSynced, HostCopy::kPageable}) {
    StepMode mode;
    mode.host_copy = copy;
    const auto expected = run(threads.cuda.get(), batch, mode);
    EXPECT_EQ(run(processes.cuda.get(), batch, mode), expected) << name(copy);
    for (const int worker : test::lora_workers_of(::getpid())) ::kill(worker, SIGKILL);
    EXPECT_EQ(run(processes.cuda.get(), batch, mode), expected) << name(copy);
  }
}

}  // namespace
}  // namespace servelab
