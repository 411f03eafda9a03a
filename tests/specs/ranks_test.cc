// Where a launcher's variables make no rank of a run, and where they make one of the CPU engine's
// replicas, whose LoRA workers are processes themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <set>
#include <thread>

#include "engine/backend/ranks/rank_replica.h"
#include "engine/cli/rank_processes.h"
#include "engine/model/model_digest.h"
#include "engine/run/real_run.h"
#include "engine/spec/spec.h"
#include "tests/support/device_testing.h"
#include "tests/support/lora_workers.h"
#include "tests/support/program.h"

namespace servelab {
namespace {

using test::Program;
using test::ProgramResult;
using ::testing::HasSubstr;

class RanksCli : public ::testing::Test {
 protected:
  ProgramResult run(const std::map<std::string, std::string>& environment,
                    const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"run", spec_, "--out", folder_ / "out"};
    words.insert(words.end(), more.begin(), more.end());
    return Program({SERVELAB_BINARY, environment}, words).wait();
  }
  const test::TemporaryFolder folder_;
  const std::string spec_ =
      folder_.file("small.yaml",
                   std::string(test::kSmallSpec) + "  requests: 20\ntechniques: [slora, punica]\n");
};

// A process whose points take no ranks runs by itself, whatever a launcher set.
TEST_F(RanksCli, PointsInVirtualTimeTakeNone) {
  const ProgramResult second = run({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}}, {});
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(second.out, HasSubstr("2 points: 2 run"));
  const ProgramResult half = run({{"RANK", "1"}}, {});
  EXPECT_EQ(half.code, 0) << half.err;
  EXPECT_THAT(half.out, HasSubstr("2 cached"));
}

TEST_F(RanksCli, AskedForWhereThereAreNone) {
  const ProgramResult none = run({}, {"--ranks", "processes"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("no launcher has started this process"));
  const ProgramResult idle = run({{"RANK", "1"},
                                  {"WORLD_SIZE", "2"},
                                  {"LOCAL_RANK", "1"},
                                  {"MASTER_ADDR", "127.0.0.1"},
                                  {"MASTER_PORT", "29500"}},
                                 {"--ranks", "processes"});
  EXPECT_EQ(idle.code, 2);
  EXPECT_THAT(idle.err, HasSubstr("no point takes several devices"));
  EXPECT_EQ(std::count(idle.err.begin(), idle.err.end(), '\n'), 1) << idle.err;
  const ProgramResult unknown = run({}, {"--ranks", "process"});
  EXPECT_EQ(unknown.code, 2);
}

class CpuRanks : public ::testing::Test {
 protected:
  std::map<std::string, std::string> environment(int rank) const {
    return {{"RANK", std::to_string(rank)},
            {"WORLD_SIZE", "2"},
            {"LOCAL_RANK", std::to_string(rank)},
            {"MASTER_ADDR", "127.0.0.1"},
            {"MASTER_PORT", std::to_string(20000 + static_cast<int>(::getpid()) % 10000)}};
  }
  // Two replicas, each with two LoRA workers.
  std::string spec(int requests) const {
    return folder_.file(
        "ranks.yaml",
        "title: test\nmodel: tiny-15m\nhardware: cpu-uncalibrated\nbackend: cpu\n"
        "cluster: {replicas: 2}\n"
        "engine: {max_batch: 8, adapter_slots: 4, memory_fraction: 0.2}\n"
        "techniques: [{technique: caraserve, with: {idle: drop}}]\n"
        "runtime: {max_arrival_lag_s: 30, max_processor_loss: 1, threads: 1, "
        "host_lora: processes, host_lora_workers: 2, "
        "host_lora_shares_cores: true}\n"
        "workload:\n"
        "  adapters: {count: 40, ranks: [4, 16]}\n"
        "  arrivals: {process: poisson, rate: 40}\n"
        "  popularity: {kind: round-robin}\n"
        "  lengths: {source: uniform, prompt_range: [20, 60], output_range: [1, 8]}\n"
        "  requests: " +
            std::to_string(requests) + "\n");
  }
  std::unique_ptr<Program> start(int rank, const std::string& spec) const {
    return std::make_unique<Program>(
        test::ProgramSettings{SERVELAB_BINARY, environment(rank)},
        std::vector<std::string>{"run", spec, "--out", folder_ / "out", "--ranks-timeout", "30"});
  }
  // All that it has at once.
  static std::set<int> workers_of(const Program& program, std::size_t count) {
    std::set<int> workers;
    for (int i = 0; i < 3000 && workers.size() < count; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      workers = test::lora_workers_of(program.pid());
    }
    EXPECT_EQ(workers.size(), count);
    return workers;
  }

  const test::TemporaryFolder folder_;
};

// Of a prompt and the tokens after it, all with an adapter that the host computes.
std::vector<std::int32_t> tokens_on_host(Device* device,
                                         const std::shared_ptr<const LoraWeights>& lora) {
  device->hold({test::nth(0)}, lora);
  std::vector<std::int32_t> ids = test::prompt(device->model(), 30, 1);
  std::size_t context = 0;
  for (int step = 0; step < 12; ++step) {
    DeviceJob job;
    job.sequences = {
        test::sequence(ids, context, test::blocks(0, 6), test::nth(0), LoraSite::kHost)};
    context = ids.size();
    ids.push_back(test::run_job(device, job).sampled.front());
  }
  return ids;
}

// A replica in another process, whose workers are that process's, against one here with threads.
TEST_F(CpuRanks, WithWorkersThatAreProcessesGiveTheTokensOfThreads) {
  const std::string experiments = std::string(SERVELAB_SOURCE_DIR) + "/experiments";
  const std::string path = spec(4);
  const ModelConfig model = load_model_config(experiments + "/base/model/tiny-15m.yaml");
  const auto weights = open_weights(model);
  const auto accelerator = find_accelerator("cpu");
  DevicePlan plan;
  plan.type = kernels::DType::kBf16;
  plan.limits = {8, 16, 4, 64};
  plan.targets = linear_layers(test::all_targets());
  plan.adapters = 1;
  plan.host_threads = 1;
  plan.host_lora = true;
  plan.lora = test::lora_workers(HostLoraBy::kThreads, 2);
  const auto lora = random_adapter(model, "a", 16, test::all_targets(), 5);
  const auto expected = tokens_on_host(accelerator->make(model, *weights, plan).get(), lora);

  plan.lora.by = HostLoraBy::kProcesses;
  const auto worker = start(1, path);
  for (const auto& [name, value] : environment(0)) ::setenv(name.c_str(), value.c_str(), 1);
  std::atomic<int> stop{0};
  std::vector<std::int32_t> tokens;
  std::set<int> workers;
  RankOptions options;
  options.timeout_s = 30;
  with_ranks(options, {load_spec(path, experiments)}, true, &stop, [&](ranks::RankGroup* group) {
    const auto replica = ranks::make_rank_replica(*accelerator, group, 1, model,
                                                  model_digest(model), *weights, plan);
    tokens = tokens_on_host(replica.get(), lora);
    workers = workers_of(*worker, 2);
    return 0;
  });
  for (const auto& [name, value] : environment(0)) ::unsetenv(name.c_str());
  EXPECT_EQ(tokens, expected);
  const ProgramResult result = worker->wait();
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.err, "");
  for (const int each : workers) EXPECT_TRUE(test::ends_soon(each));
}

// However a run of two processes ends, their four workers do.
TEST_F(CpuRanks, LoraWorkersEndWithARun) {
  for (const bool kill : {false, true}) {
    const std::string path = spec(kill ? 2000 : 80);
    const auto other = start(1, path);
    const auto lead = start(0, path);
    std::set<int> workers = workers_of(*lead, 2);
    workers.merge(workers_of(*other, 2));
    if (kill) other->signal(SIGKILL);
    const ProgramResult result = lead->wait();
    EXPECT_EQ(result.code, kill ? 1 : 0) << result.err;
    EXPECT_THAT(result.out, kill ? HasSubstr("") : HasSubstr("1 VALID"));
    EXPECT_EQ(other->wait().code, kill ? 128 + SIGKILL : 0);
    for (const int each : workers) EXPECT_TRUE(test::ends_soon(each));
  }
}

}  // namespace
}  // namespace servelab
