// Ranks as processes: servelab itself, on the device on the host, started as launchers start it.
// What two and four of them compute together is what ranks that are threads compute, and when one
// of them is killed the others end.
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <set>
#include <thread>

#include "engine/backend/ranks/rank_replica.h"
#include "engine/cli/rank_processes.h"
#include "engine/model/model_digest.h"
#include "engine/spec/spec.h"
#include "tests/cuda_engine/engine_testing.h"
#include "tests/support/lora_workers.h"
#include "tests/support/program.h"

namespace servelab {
namespace {

using namespace test;  // NOLINT: the tests' own words
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr const char* kSecret = "a secret of these tests";
constexpr const char* kModel =
    "name: Wide\nlayers: 3\nhidden: 128\nheads: 4\nkv_heads: 2\nhead_dim: 64\nffn: 256\n"
    "vocab: 104\nqkv_bias: true\nmax_context_tokens: 256\nsource: test\n";

std::string spec_text(int tensor_parallel, int requests) {
  return "title: test\nmodel: wide\nhardware: little\nbackend: cuda\ncluster: {tensor_parallel: " +
         std::to_string(tensor_parallel) +
         "}\nlora: {targets: [q, k, v, o]}\n"
         "runtime: {max_arrival_lag_s: 1000, max_processor_loss: 1}\n"
         "engine: {max_batch: 8, max_batch_tokens: 64, adapter_slots: 3}\nworkload:\n  requests: " +
         std::to_string(requests) +
         "\n  adapters: {count: 5, ranks: [4, 8]}\n  arrivals: {process: poisson, rate: 100}\n"
         "  lengths: {source: uniform, prompt_range: [5, 30], output_range: [1, 6]}\n"
         "techniques: [slora, peft, caraserve]\n";
}

// An experiments folder with one small model on a device with little memory.
class RankProcesses : public ::testing::Test {
 protected:
  RankProcesses() {
    namespace fs = std::filesystem;
    folder_.file("base/model/wide.yaml", kModel);
    std::string hardware = read_file(std::string(SERVELAB_SOURCE_DIR) +
                                     "/experiments/base/hardware/" + "cpu-uncalibrated.yaml");
    const std::size_t at = hardware.find("memory_bytes: ");
    hardware.replace(at, hardware.find(' ', at + 14) - at, "memory_bytes: 50000000");
    folder_.file("base/hardware/little.yaml", hardware);
    port_ = 20000 + static_cast<int>(::getpid()) % 10000;
  }

  std::map<std::string, std::string> environment(int rank, int ranks) const {
    return {{"RANK", std::to_string(rank)},         {"WORLD_SIZE", std::to_string(ranks)},
            {"LOCAL_RANK", std::to_string(rank)},   {"MASTER_ADDR", "127.0.0.1"},
            {"MASTER_PORT", std::to_string(port_)}, {"SERVELAB_RANKS_SECRET", kSecret}};
  }
  std::vector<std::string> command(const std::string& spec, const std::string& out,
                                   const std::string& timeout_s = "30") const {
    return {"run",   spec,          "--experiments",   folder_.path(),
            "--out", folder_ / out, "--ranks-timeout", timeout_s};
  }
  std::unique_ptr<Program> start(int rank, int ranks, const std::string& spec,
                                 const std::string& out = "out") const {
    return std::make_unique<Program>(ProgramSettings{SERVELAB_ON_HOST, environment(rank, ranks)},
                                     command(spec, out));
  }

  TemporaryFolder folder_;
  int port_ = 0;
};

struct Ranks {
  int count;
  HostLoraBy host_lora;
};
class RankLogits : public RankProcesses, public ::testing::WithParamInterface<Ranks> {};

std::vector<Sequence> mixed(const ModelConfig& model, bool decodes) {
  std::vector<Sequence> batch;
  for (int i = 0; i < 4; ++i) {
    const auto ids = prompt(model, 4 + 5 * i, 10 + static_cast<std::uint64_t>(i));
    batch.push_back(sequence(ids, decodes ? ids.size() - 1 : 0, blocks(i * 9, 9),
                             i % 3 == 2 ? kBaseModel : nth(static_cast<std::size_t>(i % 3))));
  }
  return batch;
}

// A step that begins with adapter 0 on the host, and goes on with it on the devices that have it.
DeviceResult begun_on_host(Device* device) {
  const auto ids = prompt(device->model(), 17, 8);
  DeviceJob job;
  job.mode.take_over = TakeOver::kLoaded;
  job.sequences = {sequence(ids, 0, blocks(0, 8), nth(0), LoraSite::kHost),
                   sequence(ids, 0, blocks(8, 8), kBaseModel)};
  return run_job(device, job);
}

// Everything that a replica does, on any device: LoRA on the host before and after the adapter has
// come, a mixed batch, decodes (eager, recorded and as a graph), a merge, and a context that was
// swapped out.
std::vector<std::vector<float>> all_of(
    Device* device, const std::vector<std::shared_ptr<const LoraWeights>>& lora) {
  const ModelConfig& model = device->model();
  std::vector<std::vector<float>> outcomes;
  device->hold({nth(0), 64}, lora.front());
  for (const bool has_come : {false, true}) {
    if (has_come) load(device, nth(0), lora.front(), 64);
    const DeviceResult result = begun_on_host(device);
    EXPECT_EQ(result.host_layers, has_come ? 0 : model.layers);
    outcomes.push_back(result.logits);
  }
  for (std::size_t i = 1; i < lora.size(); ++i) load(device, nth(i), lora[i], 64);
  outcomes.push_back(run(device, mixed(model, false)));
  for (int round = 0; round < 3; ++round) outcomes.push_back(run(device, mixed(model, true)));
  const auto ids = prompt(model, 31, 6);
  merge(device, nth(0));
  outcomes.push_back(prefill_merged(device, ids, blocks(0, 8)));
  unmerge(device);
  outcomes.push_back(prefill(device, ids, 200, blocks(0, 8)));
  move(device, {out_of(blocks(0, 8), 31)});
  prefill(device, prompt(model, 30, 99), 200, blocks(0, 8));
  move(device, {into(blocks(40, 8), 31)});
  outcomes.push_back(run(device, {sequence(ids, 30, blocks(40, 8))}));
  // Evicted and brought back, in another order.
  for (const std::size_t i : {0u, 1u}) device->evict(nth(i));
  for (const std::size_t i : {1u, 0u}) device->load({nth(i), 64}, lora[i]);
  outcomes.push_back(run(device, mixed(model, false)));
  return outcomes;
}

// Steps go on while an adapter comes to one rank after the other, again and again. The ranks leave
// their hosts together whenever that is: one that did so alone would wait for ever at a sum that
// the others do not take part in.
void expect_to_agree_while_it_comes(Device* device, const std::shared_ptr<const LoraWeights>& lora,
                                    const std::vector<float>& expected) {
  for (int round = 0; round < 12; ++round) {
    std::thread loading([&] { load(device, nth(0), lora, 64); });
    for (;;) {
      const DeviceResult result = begun_on_host(device);
      EXPECT_LT(difference(result.logits, expected), tolerance(DType::kF16));
      if (result.host_layers == 0) break;
    }
    loading.join();
    device->evict(nth(0));
    // The ranks give it back with the next load, of another one.
    load(device, nth(1), lora, 64);
    EXPECT_EQ(begun_on_host(device).host_layers, device->model().layers);
    device->evict(nth(1));
  }
}

TEST_P(RankLogits, AreThoseOfThreadsAndOfTheCpu) {
  const int ranks = GetParam().count;
  const std::string path = folder_.file("wide.yaml", spec_text(ranks, 4));
  const ModelConfig model = load_model_config(folder_ / "base/model/wide.yaml");
  const auto weights = random_weights(model, static_cast<std::uint64_t>(model.weights_seed));
  DevicePlan plan = small_plan(DType::kF16);
  plan.ranks = ranks;
  std::vector<std::shared_ptr<const LoraWeights>> lora;
  for (const int rank : {4, 16}) {
    lora.push_back(random_adapter(model, "a", rank, all_targets(), 5));
  }
  const auto expected = all_of(cpu_device(model, *weights, plan.limits).get(), lora);
  const auto threads = all_of(find_accelerator("cuda")->make(model, *weights, plan).get(), lora);

  std::vector<std::unique_ptr<Program>> workers;
  for (int rank = 1; rank < ranks; ++rank) workers.push_back(start(rank, ranks, path));
  for (const auto& [name, value] : environment(0, ranks)) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  // Rank 0's LoRA workers are processes of servelab, the others' of their own program.
  const bool by_processes = GetParam().host_lora == HostLoraBy::kProcesses;
  if (by_processes) {
    plan.lora = lora_workers(HostLoraBy::kProcesses, 1);
  }
  std::set<int> helpers;
  std::atomic<int> stop{0};
  std::vector<std::vector<float>> processes;
  RankOptions rank_options;
  rank_options.timeout_s = 30;
  const int code = with_ranks(
      rank_options, {load_spec(path, folder_.path())}, true, &stop, [&](ranks::RankGroup* group) {
        EXPECT_NE(group, nullptr);
        const auto accelerator = find_accelerator("cuda");
        const auto replica = ranks::make_rank_replica(*accelerator, group, 0, model,
                                                      model_digest(model), *weights, plan);
        processes = all_of(replica.get(), lora);
        for (const std::size_t i : {0u, 1u}) {
          replica->wait(nth(i));
          replica->evict(nth(i));
        }
        expect_to_agree_while_it_comes(replica.get(), lora.front(), expected.front());
        helpers = lora_workers_of(::getpid());
        for (const auto& worker : workers) helpers.merge(lora_workers_of(worker->pid()));
        EXPECT_EQ(helpers.size(), by_processes ? static_cast<std::size_t>(ranks) : 0);
        // Those of another rank than the first are told of, too. Who is killed between steps may
        // have been replaced when the next begins, and then was not lost.
        int lost = helpers.empty() ? 1 : 0;
        for (int i = 0; i < 100 && lost == 0; ++i) {
          for (const int helper : lora_workers_of(workers.front()->pid())) {
            ::kill(helper, SIGKILL);
            helpers.insert(helper);
          }
          const DeviceResult result = begun_on_host(replica.get());
          EXPECT_EQ(result.logits, processes.front());
          lost += result.host_work.lost;
        }
        EXPECT_GT(lost, 0);
        helpers.merge(lora_workers_of(workers.front()->pid()));
        return 5;
      });
  for (const auto& [name, value] : environment(0, ranks)) ::unsetenv(name.c_str());
  EXPECT_EQ(code, 5);
  for (const auto& worker : workers) {
    const ProgramResult result = worker->wait();
    EXPECT_EQ(result.code, 5);  // all end as rank 0 does
    EXPECT_EQ(result.err, "");
  }
  for (const int helper : helpers) EXPECT_TRUE(ends_soon(helper));
  ASSERT_EQ(processes.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(processes[i], threads[i]) << i;
    EXPECT_LT(difference(processes[i], expected[i]), tolerance(DType::kF16)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Processes, RankLogits,
                         ::testing::Values(Ranks{2, HostLoraBy::kThreads},
                                           Ranks{4, HostLoraBy::kThreads},
                                           Ranks{2, HostLoraBy::kProcesses}),
                         [](const auto& info) {
                           return std::to_string(info.param.count) + "_" +
                                  kHostLoraBy[static_cast<std::size_t>(info.param.host_lora)];
                         });

TEST_F(RankProcesses, RunASpecAsThreadsDo) {
  const std::string spec = folder_.file("wide.yaml", spec_text(2, 8));
  const auto worker = start(1, 2, spec);
  const auto lead = start(0, 2, spec);
  const ProgramResult result = lead->wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("3 points: 3 run, 0 cached; 3 VALID, 0 INVALID"));
  const ProgramResult workers = worker->wait();
  EXPECT_EQ(workers.code, 0);
  EXPECT_EQ(workers.out, "");
  EXPECT_EQ(workers.err, "");
  // Again, as threads: the same points, which are there.
  std::vector<std::string> again = command(spec, "out");
  again.insert(again.end(), {"--ranks", "threads"});
  const ProgramResult cached = Program({SERVELAB_ON_HOST, environment(0, 2)}, again).wait();
  EXPECT_THAT(cached.out, HasSubstr("3 points: 0 run, 3 cached")) << cached.err;
}

// Two replicas of one rank each: the second one is the other process's alone.
TEST_F(RankProcesses, AReplicaMayBeInAnotherProcess) {
  std::string text = spec_text(1, 8);
  text.replace(text.find("tensor_parallel: 1"), 18, "replicas: 2");
  const std::string spec = folder_.file("wide.yaml", text);
  const auto worker = start(1, 2, spec);
  const ProgramResult result = start(0, 2, spec)->wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("3 VALID, 0 INVALID"));
  EXPECT_EQ(worker->wait().code, 0);
}

// In the middle of a run; the others end within seconds and say why.
class RankDeaths : public RankProcesses {
 protected:
  void kill_one(int victim) {
    const std::string spec = folder_.file("wide.yaml", spec_text(4, 4000));
    std::vector<std::unique_ptr<Program>> all;
    for (int rank = 0; rank < 4; ++rank) all.push_back(start(rank, 4, spec));
    ASSERT_TRUE(wait_for_files(folder_ / "out/wide/points", 1, ".lock"));
    std::this_thread::sleep_for(std::chrono::seconds(2));
    const auto began = std::chrono::steady_clock::now();
    all[static_cast<std::size_t>(victim)]->signal(SIGKILL);
    for (int rank = 0; rank < 4; ++rank) {
      const ProgramResult result = all[static_cast<std::size_t>(rank)]->wait();
      if (rank == victim) continue;
      SCOPED_TRACE("rank " + std::to_string(rank) + ": " + result.err);
      EXPECT_EQ(result.code, 1);
      EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
      if (rank == 0) {
        EXPECT_THAT(result.err, HasSubstr("servelab: error: rank 2 ("));
      } else if (victim == 0) {
        EXPECT_THAT(result.err, ContainsRegex("rank 0 at 127.0.0.1:.* ended"));
      } else {
        EXPECT_THAT(result.err, HasSubstr("rank 0 ended the run: rank 2 ("));
      }
    }
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
  }
};

TEST_F(RankDeaths, AWorkersEndsAll) { kill_one(2); }
TEST_F(RankDeaths, Rank0sEndsAll) { kill_one(0); }

TEST_F(RankProcesses, ASignalToAWorkerStopsTheRun) {
  const std::string spec = folder_.file("wide.yaml", spec_text(2, 40));
  const auto worker = start(1, 2, spec);
  const auto lead = start(0, 2, spec);
  ASSERT_TRUE(wait_for_files(folder_ / "out/wide/points", 1, ".lock"));
  worker->signal(SIGTERM);
  const ProgramResult result = lead->wait();
  EXPECT_EQ(result.code, 128 + SIGTERM);
  EXPECT_THAT(result.err, HasSubstr("interrupted: finished points are kept"));
  EXPECT_EQ(worker->wait().code, 128 + SIGTERM);
}

TEST_F(RankProcesses, WhatCannotBeAGroupIsOneLine) {
  const std::string spec = folder_.file("wide.yaml", spec_text(2, 4));
  const auto run = [&](std::map<std::string, std::string> variables,
                       const std::vector<std::string>& more) {
    std::vector<std::string> words = command(spec, "out", "0.5");
    words.insert(words.end(), more.begin(), more.end());
    const ProgramResult result = Program({SERVELAB_ON_HOST, std::move(variables)}, words).wait();
    EXPECT_EQ(result.code, 2);
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    return result.err;
  };
  EXPECT_THAT(run({}, {"--ranks", "processes"}), HasSubstr("no launcher has started this process"));
  EXPECT_THAT(run({{"RANK", "0"}}, {}), HasSubstr("half set: RANK is there and WORLD_SIZE is not"));
  EXPECT_THAT(run(environment(0, 3), {}), HasSubstr("ranks 1, 2 of 3 did not come to 127.0.0.1:"));
  EXPECT_THAT(run(environment(1, 2), {}),
              HasSubstr("rank 1: rank 0 cannot be reached at 127.0.0.1:"));
  EXPECT_THAT(run(environment(0, 2), {"--ranks", "processes", "--emit-jobs", "-"}),
              HasSubstr("--ranks processes goes with points that are computed here"));
}

TEST_F(RankProcesses, AsManyProcessesAsRanksAreNeeded) {
  const std::string spec = folder_.file("wide.yaml", spec_text(4, 4));
  const auto worker = start(1, 2, spec);
  const ProgramResult result = start(0, 2, spec)->wait();
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("ask for 4 ranks, and 2 processes were started"));
  EXPECT_EQ(worker->wait().code, 2);
}

// A model that another rank reads differently is found before anything runs.
TEST_F(RankProcesses, OtherModelsAreNoticed) {
  const std::string spec = folder_.file("wide.yaml", spec_text(2, 4));
  const auto worker = start(1, 2, spec);
  // The worker has read its model when it tries to reach rank 0.
  std::this_thread::sleep_for(std::chrono::seconds(2));
  std::string changed = kModel;
  changed.replace(changed.find("layers: 3"), 9, "layers: 4");
  folder_.file("base/model/wide.yaml", changed);
  const ProgramResult result = start(0, 2, spec)->wait();
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("rank 1 ("), HasSubstr("read other models")));
  const ProgramResult refused = worker->wait();
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("rank 1: rank 0 refused: rank 1 ("));
}

// Rank 0 of another build, as this program pretends to be.
TEST_F(RankProcesses, AnotherBuildIsRefused) {
  const std::string spec = folder_.file("wide.yaml", spec_text(2, 4));
  const auto worker = start(1, 2, spec);
  ranks::GroupSettings settings;
  settings.at = {"127.0.0.1", port_};
  settings.ranks = 2;
  settings.identity = {"another build", ""};
  settings.secret.text = kSecret;
  std::string error;
  try {
    ranks::RankGroup group(settings);
  } catch (const SpecError& problem) {
    error = problem.what();
  }
  EXPECT_THAT(error, HasSubstr("is of another build of servelab"));
  const ProgramResult result = worker->wait();
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("is of another build of servelab"));
}

}  // namespace
}  // namespace servelab
