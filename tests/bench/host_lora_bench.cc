// LoRA workers beside a caller that only waits (CaraServe 4.2, Figures 17 and 18): what a signal
// and its reply take, what rows and results take on their way, and what workers reach of their
// kernel. Counters are medians over jobs; with fewer cores than workers and the caller, they share
// them.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <vector>

#include "engine/backend/device/thread_team.h"
#include "engine/backend/host_lora/team.h"
#include "tests/support/lora_workers.h"

namespace servelab {
namespace {

using host_lora::Group;
using host_lora::Job;
using host_lora::Rows;
using host_lora::Team;
using kernels::DType;

constexpr int kWidth = 4096;  // Llama-2-7B's q
constexpr int kRank = 64;
constexpr int kLayers = 24;  // of 1 MiB each: weights come from memory, not from a cache
constexpr int kRounds = 40;
const Rows kRows{DType::kBf16, DType::kF32, 0, 0, false};

using Clock = std::chrono::steady_clock;

double us(Clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

ModelConfig wide_model() {
  ModelConfig model;
  model.name = "wide";
  model.layers = kLayers;
  model.hidden = kWidth;
  model.heads = model.kv_heads = kWidth / 64;
  model.head_dim = 64;
  model.ffn = 64;
  model.vocab = 64;
  model.source = "benchmark";
  return model;
}

// A team, an adapter of q's, and jobs of so many rows.
class Bench {
 public:
  Bench(HostLoraPlan plan, int rows_per_worker, int rows) : rows_(rows) {
    plan.rows_per_worker = rows_per_worker;
    plan.shares_cores = plan.workers + 1 > static_cast<int>(usable_cores().size());
    host_lora::TeamSettings settings;
    settings.plan = plan;
    settings.isa = kernels::best_isa();
    settings.most_jobs = kLayers;
    settings.most_rows = rows;
    settings.x_row_bytes = kWidth * sizeof(std::uint16_t);
    settings.out_row_bytes = kWidth * sizeof(float);
    team_ = std::make_unique<Team>(settings);
    const auto weights = random_adapter(wide_model(), "a", kRank, {"q"}, 1);
    adapter_ = std::make_unique<PackedAdapter>(*weights, DType::kBf16, 0, team_->adapters());
    std::memset(team_->x(), 0, static_cast<std::size_t>(rows) * settings.x_row_bytes);
  }

  // Calls done(us, work) after each job of kRounds rounds.
  template <class Done>
  void run(int layer_kind, int columns, Done done) {
    std::vector<Job> jobs;
    for (int layer = 0; layer < kLayers; ++layer) {
      jobs.push_back({layer, kWidth, kWidth, 1, {{{layer_kind, 0, columns}}}});
    }
    const std::vector<Group> groups = {{adapter_.get(), 0, rows_}};
    for (int round = 0; round < kRounds; ++round) {
      team_->begin(kRows, groups, jobs);
      for (int job = 0; job < kLayers; ++job) {
        const Clock::time_point begin = Clock::now();
        team_->post(job);
        team_->wait(job);
        done(us(Clock::now() - begin), team_->take_work());
      }
      team_->finish();
    }
  }

  // The same kernel on the same rows by the caller, which works as one of the workers would.
  double kernel_us(int rows) const {
    const std::byte* const x = team_->x();
    std::vector<float> out(static_cast<std::size_t>(rows) * kWidth);
    std::vector<double> times;
    for (int round = 0; round < kRounds; ++round) {
      for (int layer = 0; layer < kLayers; ++layer) {
        const Clock::time_point begin = Clock::now();
        host_lora::compute(kernels::ops(kernels::best_isa()), kRows, {0, 0, kWidth},
                           adapter_->find(layer, LinearLayer::kQ), x, kWidth, kWidth, rows,
                           reinterpret_cast<std::byte*>(out.data()), kWidth);
        times.push_back(us(Clock::now() - begin));
      }
    }
    return median(times);
  }

 private:
  const int rows_;
  std::unique_ptr<Team> team_;
  std::unique_ptr<PackedAdapter> adapter_;
};

// A matrix that the adapter leaves alone, of 16 columns: nothing but the signal and the reply.
void BM_SignalAndReply(benchmark::State& state, HostLoraBy by) {
  Bench bench(test::lora_workers(by, 1), 8, 1);
  std::vector<double> times;
  for (auto _ : state) {
    bench.run(static_cast<int>(LinearLayer::kK), 16,
              [&](double time, const HostWork&) { times.push_back(time); });
  }
  state.counters["median_us"] = median(times);
}
BENCHMARK_CAPTURE(BM_SignalAndReply, threads, HostLoraBy::kThreads)->Iterations(5);
BENCHMARK_CAPTURE(BM_SignalAndReply, processes, HostLoraBy::kProcesses)->Iterations(5);

// 16 rows of 4,096 to each process, rank 64, and as many results back.
void BM_Rows16(benchmark::State& state, HostLoraTransport transport) {
  const auto workers = static_cast<int>(state.range(0));
  Bench bench(test::lora_workers(HostLoraBy::kProcesses, workers, transport), 16, 16 * workers);
  std::vector<double> total, data, compute;
  for (auto _ : state) {
    bench.run(static_cast<int>(LinearLayer::kQ), kWidth, [&](double time, const HostWork& work) {
      total.push_back(time);
      data.push_back(1e-3 * static_cast<double>(work.data));
      compute.push_back(1e-3 * static_cast<double>(work.compute));
    });
  }
  state.counters["total_us"] = median(total);
  state.counters["data_us"] = median(data);
  state.counters["compute_us"] = median(compute);
}
BENCHMARK_CAPTURE(BM_Rows16, shared, HostLoraTransport::kShared)
    ->ArgName("processes")
    ->DenseRange(1, 8)
    ->Iterations(1);
BENCHMARK_CAPTURE(BM_Rows16, sockets, HostLoraTransport::kSockets)
    ->ArgName("processes")
    ->DenseRange(1, 8)
    ->Iterations(1);

// What a worker that is a process reaches of its kernel's own speed: time of the kernel over the
// time from signal to reply.
void BM_OneWorker(benchmark::State& state) {
  const auto rows = static_cast<int>(state.range(0));
  Bench bench(test::lora_workers(HostLoraBy::kProcesses, 1), rows, rows);
  std::vector<double> shares;
  for (auto _ : state) {
    for (int i = 0; i < 3; ++i) {  // one beside the other: the machine is shared
      std::vector<double> total;
      bench.run(static_cast<int>(LinearLayer::kQ), kWidth,
                [&](double time, const HostWork&) { total.push_back(time); });
      shares.push_back(bench.kernel_us(rows) / median(total));
    }
  }
  state.counters["share_of_kernel"] = median(shares);
}
BENCHMARK(BM_OneWorker)->ArgName("rows")->Arg(8)->Arg(16)->Arg(64)->Iterations(1);

// One prompt of 128 tokens: processes, each with its rows, against a team of threads that shares
// each of the two products (PyTorch's way; Figure 18, right).
void BM_Rows128(benchmark::State& state) {
  const auto workers = static_cast<int>(state.range(0));
  constexpr int kTokens = 128;
  Bench bench(test::lora_workers(HostLoraBy::kProcesses, workers), kTokens / workers, kTokens);
  const auto storage = std::make_shared<AdapterStorage>();
  const auto weights = random_adapter(wide_model(), "a", kRank, {"q"}, 1);
  const PackedAdapter adapter(*weights, DType::kBf16, 0, storage);
  ThreadTeam threads(workers, {});
  const kernels::Ops& ops = kernels::ops(kernels::best_isa());
  const std::vector<std::uint16_t> x(std::size_t{kTokens} * kWidth);
  std::vector<float> t(std::size_t{kTokens} * kRank);
  std::vector<float> y(std::size_t{kTokens} * kWidth);
  const auto library_us = [&] {
    std::vector<double> times;
    for (int layer = 0; layer < kLayers; ++layer) {
      const kernels::LoraRows all{0, kTokens, adapter.find(layer, LinearLayer::kQ)};
      const kernels::LoraBatch batch{kernels::LoraKind::kSgmv, &all, 1, kTokens, kRank};
      const Clock::time_point begin = Clock::now();
      threads.run([&](int member) {
        kernels::lora_shrink(ops, batch, x.data(), kWidth, t.data(), kRank, nullptr, member,
                             workers);
        threads.barrier();
        kernels::lora_expand(ops, batch, t.data(), kRank, y.data(), kWidth,
                             kTokens * member / workers, kTokens * (member + 1) / workers, 0,
                             kWidth);
      });
      times.push_back(us(Clock::now() - begin));
    }
    return median(times);
  };
  std::vector<double> own, library;
  for (auto _ : state) {
    for (int i = 0; i < 3; ++i) {
      std::vector<double> total;
      bench.run(static_cast<int>(LinearLayer::kQ), kWidth,
                [&](double time, const HostWork&) { total.push_back(time); });
      own.push_back(median(total));
      library.push_back(library_us());
    }
  }
  state.counters["workers_us"] = median(own);
  state.counters["library_us"] = median(library);
  state.counters["speedup"] = median(library) / median(own);
}
BENCHMARK(BM_Rows128)->ArgName("workers")->Arg(1)->Arg(2)->Arg(4)->Arg(8)->Iterations(1);

}  // namespace
}  // namespace servelab
