// The parts of LoRA on the host, and how it fails: on the device on the host, where signals are as
// late as they may be and the device can be made to fail.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "engine/backend/cuda/host_workers.h"
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

// --- failures ---

DevicePlan assisted_plan() {
  DevicePlan plan = small_plan(DType::kBf16);
  plan.host_threads = 2;
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
