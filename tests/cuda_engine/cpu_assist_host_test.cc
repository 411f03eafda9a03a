// The parts of LoRA on the host, and how it fails: on the device on the host, where signals are as
// late as they may be and the device can be made to fail.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "engine/backend/cuda/host_workers.h"
#include "engine/backend/cuda/step_input.h"
#include "engine/backend/cuda/stream_wait.h"
#include "tests/cuda_engine/engine_testing.h"
#include "tests/cuda_engine/host_device.h"

namespace servelab {
namespace {

using namespace test;  // NOLINT: the tests' own words
using cuda::HostWorkers;
using ::testing::ElementsAre;

// --- the threads ---

struct Words {
  alignas(64) std::uint32_t signal = 0;
  alignas(64) std::uint32_t reply = 0;
  void give(std::uint32_t number) { std::atomic_ref(signal).store(number); }
  std::uint32_t replied() { return std::atomic_ref(reply).load(); }
  void await(std::uint32_t number) {
    while (static_cast<std::int32_t>(replied() - number) < 0) std::this_thread::yield();
  }
};

// Every piece of every job once, between its signal and its reply, over many steps of random
// shapes.
TEST(CudaHostWorkers, JobsRunBetweenTheirSignalsAndReplies) {
  RngStream rng(1, "workers");
  for (const int threads : {1, 2, 4}) {
    Words words;
    HostWorkers workers(threads, {}, &words.signal, &words.reply);
    EXPECT_EQ(workers.threads(), threads);
    for (int step = 0; step < 200; ++step) {
      const auto jobs = 1 + static_cast<int>(rng.below(6));
      const auto pieces = 1 + static_cast<int>(rng.below(5));
      std::vector<std::atomic<int>> counts(static_cast<std::size_t>(jobs * pieces));
      std::atomic<int> given{-1};
      std::atomic<int> wrong{0};
      const std::uint32_t first = workers.begin(jobs, pieces, [&](int job, int piece) {
        if (job != given.load()) ++wrong;
        ++counts[static_cast<std::size_t>(job * pieces + piece)];
      });
      EXPECT_EQ(words.replied(), first - 1);
      for (int job = 0; job < jobs; ++job) {
        given.store(job);
        words.give(first + static_cast<std::uint32_t>(job));
        words.await(first + static_cast<std::uint32_t>(job));
        for (int piece = 0; piece < pieces; ++piece) {
          EXPECT_EQ(counts[static_cast<std::size_t>(job * pieces + piece)].load(), 1);
        }
      }
      workers.finish();
      EXPECT_EQ(wrong.load(), 0);
    }
  }
}

TEST(CudaHostWorkers, AFailureIsReportedAndLeavesNoStreamWaiting) {
  Words words;
  HostWorkers workers(2, {}, &words.signal, &words.reply);
  for (int round = 0; round < 20; ++round) {
    const std::uint32_t first = workers.begin(4, 3, [](int job, int piece) {
      if (job == 1 && piece == 2) throw SpecError("out of memory on the host");
    });
    for (std::uint32_t job = 0; job < 4; ++job) {
      words.give(first + job);
      words.await(first + job);
    }
    try {
      workers.finish();
      FAIL() << "a piece has failed";
    } catch (const SpecError& error) {
      EXPECT_STREQ(error.what(), "out of memory on the host");
    }
  }
  std::atomic<int> done{0};  // and the next step is a step again
  const std::uint32_t first = workers.begin(1, 3, [&](int, int) { ++done; });
  words.give(first);
  workers.finish();
  EXPECT_EQ(done.load(), 3);
}

TEST(CudaHostWorkers, AnAbandonedStepIsRepliedToWhateverWasSignalled) {
  for (std::uint32_t signals = 0; signals <= 3; ++signals) {
    Words words;
    HostWorkers workers(3, {}, &words.signal, &words.reply);
    std::uint32_t first = workers.begin(3, 2, [](int, int) {});
    for (std::uint32_t job = 0; job < signals; ++job) {
      words.give(first + job);
      words.await(first + job);
    }
    workers.abandon();
    EXPECT_EQ(words.replied(), first + 2);
    // A signal of the abandoned step that comes after all is none of the next.
    std::atomic<int> done{0};
    first = workers.begin(1, 2, [&](int, int) { ++done; });
    words.give(first - 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(done.load(), 0);
    words.give(first);
    workers.finish();
    EXPECT_EQ(done.load(), 2);
  }
}

TEST(CudaHostWorkers, TheyEndWhileTheyWaitForASignal) {
  Words words;
  HostWorkers workers(3, usable_cores(), &words.signal, &words.reply);
  workers.begin(3, 2, [](int, int) { FAIL() << "nothing was signalled"; });
}

// --- a step's rows ---

struct Assisted : Engines {
  explicit Assisted(const DevicePlan& plan) : Engines(plan) {
    for (const auto& weights : lora) on_host.push_back(cuda->host_adapter(weights));
  }
  std::vector<std::unique_ptr<DeviceAdapter>> on_host;
};

DevicePlan assisted_plan() {
  DevicePlan plan = small_plan(DType::kBf16);
  plan.host_threads = 2;
  return plan;
}

Part part(const ModelConfig& model, int context, int tokens, const DeviceAdapter* adapter) {
  Part part;
  part.ids = prompt(model, context + tokens, 1);
  part.context = static_cast<std::size_t>(context);
  part.table = blocks(7, 20);
  part.adapter = adapter;
  return part;
}

TEST(CudaHostRows, LieBetweenTheDevicesAndTheBases) {
  const DevicePlan plan = assisted_plan();
  const Assisted engines(plan);
  const auto& host = engines.on_host;
  std::vector<std::byte> memory(cuda::StepInput::bytes(engines.model, plan.limits));
  cuda::StepInput input(engines.model, plan.limits, plan.type, memory.data(), memory.data());
  const std::vector<Part> parts = {part(engines.model, 0, 3, host[2].get()),
                                   part(engines.model, 9, 1, nullptr),
                                   part(engines.model, 5, 1, host[1].get()),
                                   part(engines.model, 0, 2, nullptr),
                                   part(engines.model, 12, 1, host[2].get()),
                                   part(engines.model, 4, 2, host[1].get()),
                                   part(engines.model, 8, 1, engines.on_cuda[0].get()),
                                   part(engines.model, 0, 4, engines.on_cuda[0].get()),
                                   part(engines.model, 3, 1, host[1].get())};
  std::vector<SequenceSlice> slices;
  for (const Part& each : parts) slices.push_back(each.slice());
  EXPECT_FALSE(cuda::StepInput::only_decodes({&slices[2], 1})) << "a graph of it is not to be";
  EXPECT_TRUE(cuda::StepInput::only_decodes({&slices[6], 1}));
  const cuda::StepShape& shape =
      input.lay_out(slices, LoraKernel::kSgmv, /*unmerged=*/true, {}, /*bucketed=*/false);
  // Decodes: the device's, host[2] (first of all in the batch), host[1] twice, base. Prefills: the
  // device's 4, host[2]'s 3, host[1]'s 2, the base's 2.
  EXPECT_EQ(shape.rows, 16);
  const int slot = static_cast<const cuda::CudaAdapter&>(*engines.on_cuda[0]).slot();
  EXPECT_THAT(
      std::vector<int>(input.slots.host, input.slots.host + shape.rows),
      ElementsAre(slot, -1, -1, -1, -1, slot, slot, slot, slot, -1, -1, -1, -1, -1, -1, -1));
  const auto& rows = input.host().rows;
  EXPECT_THAT(rows.begin, ElementsAre(1, 9));
  EXPECT_THAT(rows.count, ElementsAre(3, 5));
  std::vector<std::array<int, 3>> groups;
  for (const auto& group : input.host().groups) {
    groups.push_back({group.adapter->rank(), group.begin, group.count});
  }
  EXPECT_THAT(groups, ElementsAre(std::array{16, 0, 1}, std::array{8, 1, 2}, std::array{16, 3, 3},
                                  std::array{8, 6, 2}));
  EXPECT_THAT(input.adapters(), ElementsAre(engines.on_cuda[0].get()));
  // A merged step asks nothing of the host.
  input.lay_out(slices, LoraKernel::kSgmv, /*unmerged=*/false, {}, /*bucketed=*/false);
  EXPECT_TRUE(input.host().groups.empty());
  EXPECT_EQ(input.host().rows.rows(), 0);
}

// --- failures ---

// The device fails after any amount of work, or refuses any launch: the step says so, nobody is
// left waiting, and where the device comes back the next step is right.
TEST(CudaHostLoraFails, ADeviceThatFailsIsAnErrorOfTheStep) {
  const Assisted engines(assisted_plan());
  cuda::CudaExecutor* const cuda = engines.cuda.get();
  const auto ids = prompt(engines.model, 9, 6);
  const std::vector<Part> parts = {{ids, 0, blocks(0, 9), engines.on_host[1].get()},
                                   {ids, 0, blocks(9, 9), engines.on_cuda[2].get()},
                                   {ids, 0, blocks(18, 9), engines.on_host[3].get()}};
  const auto expected = run(cuda, parts);
  RunMode mode;
  for (int at = 0; at < 90; at += at < 9 ? 1 : 9) {
    for (const bool calls : {false, true}) {
      for (const HostCopy copy : {HostCopy::kFused, HostCopy::kSynced}) {
        mode.host_copy = copy;
        calls ? host_device::fail_after_calls(at) : host_device::fail_after_work(at);
        EXPECT_THROW(run(cuda, parts, mode), SpecError) << at << (calls ? " calls" : " work");
        host_device::mend();
        ASSERT_EQ(run(cuda, parts, mode), expected) << at << (calls ? " calls" : " work");
      }
    }
  }
}

// The threads find no memory for their sums: the step ends, and says why.
TEST(CudaHostLoraFails, AHostThatFailsIsAnErrorOfTheStep) {
  const Assisted engines(assisted_plan());
  cuda::CudaExecutor* const cuda = engines.cuda.get();
  const auto ids = prompt(engines.model, 9, 6);
  std::vector<std::int32_t> sampled;
  const std::vector<Part> parts = {{ids, 0, blocks(0, 9), engines.on_host[1].get()}};
  const SequenceSlice slice = parts.front().slice();
  for (const HostCopy copy : {HostCopy::kFused, HostCopy::kSynced}) {
    RunMode mode;
    mode.host_copy = copy;
    try {
      host_device::refuse_memory_of(4096);
      cuda->run({&slice, 1}, mode, {}, &sampled);
      host_device::refuse_memory_of(SIZE_MAX);
      ADD_FAILURE() << "there was no memory";
    } catch (const SpecError& error) {
      host_device::refuse_memory_of(SIZE_MAX);
      EXPECT_THAT(error.what(), ::testing::HasSubstr("out of memory: LoRA on the host"));
    }
  }
  const auto expected = prefill(engines.cpu.get(), ids, 200, engines.on_cpu[1].get(), blocks(0, 9));
  EXPECT_LT(difference(run(cuda, parts), expected), tolerance(DType::kBf16));
}

// Torn down while the device is gone and its work is lost.
TEST(CudaHostLoraFails, AnEngineEndsAfterItsDevice) {
  for (const int at : {0, 3, 17, 40}) {
    {
      const Assisted engines(assisted_plan());
      const auto ids = prompt(engines.model, 9, 6);
      host_device::fail_after_work(at);
      EXPECT_THROW(run(engines.cuda.get(), {{ids, 0, blocks(0, 9), engines.on_host[1].get()}}),
                   SpecError);
    }
    host_device::mend();
  }
}

// A stream goes on behind a reply that stands for work that failed.
TEST(CudaHostLoraFails, TheStreamOfAFailedStepGoesOn) {
  Words words;
  HostWorkers workers(2, {}, &words.signal, &words.reply);
  cuda::Stream stream;
  std::atomic<bool> behind{false};
  const std::uint32_t first =
      workers.begin(2, 2, [](int, int) { throw SpecError("the host fails"); });
  for (std::uint32_t number = first; number < first + 2; ++number) {
    host_device::enqueue(stream.get(), [&words, number] {
      host_device::signal_late([&words, number] { words.give(number); });
    });
    cuda::hold_until(stream.get(), &words.reply, number);
  }
  host_device::enqueue(stream.get(), [&behind] { behind.store(true); });
  stream.synchronize();
  EXPECT_TRUE(behind.load());
  EXPECT_THROW(workers.finish(), SpecError);
}

}  // namespace
}  // namespace servelab
