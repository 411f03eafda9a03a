// CaraServe's replica side: when a cold adapter's LoRA runs where, and what waits for what.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Steps take about 1 ms; an adapter of 160 MB loads for 10.
constexpr Bytes kLarge = 160'000'000;
constexpr TimeNs kLoad = 5'000 + kLarge / 16;

Workload to_adapters(const std::vector<std::uint32_t>& adapters, double apart_s = 0) {
  Workload workload;
  for (int i = 0; i < 4; ++i) workload.adapters.push_back(Adapter{"a", ModelId{}, 8, kLarge});
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    Request r;
    r.arrival = from_seconds(apart_s * static_cast<double>(i));
    r.adapter = static_cast<AdapterId>(adapters[i]);
    r.prompt_tokens = 20;
    r.output_tokens = r.output_limit_tokens = 4;
    workload.requests.push_back(r);
  }
  return workload;
}

RunRecord run(const Workload& workload, const std::string& params, int slots = 4) {
  test::RunOptions options;
  options.technique = "caraserve";
  options.params = params;
  options.engine = test::small_engine();
  options.engine.adapter_slots = slots;
  options.record.decision_text = options.record.steps = true;
  const RunRecord record = test::run(workload, options);
  EXPECT_EQ(test::violation(workload, record), "");
  return record;
}

TimeNs load_end(const RunRecord& record) {
  for (const EventRecord& event : record.events) {
    if (event.code == EventCode::kLoad) return event.at;
  }
  return kUnset;
}

TEST(Caraserve, AColdRequestsFirstTokenComesBeforeItsAdapter) {
  const RunRecord record = run(to_adapters({0}), "");
  // The results of 20 rows take the link from it for a while.
  const TimeNs load = kLoad + 20 * 100;
  EXPECT_EQ(load_end(record), load);
  EXPECT_EQ(record.requests[0].prefill_start, 0);
  EXPECT_LT(record.requests[0].first_token, kLoad / 4);
  // The prompt on the host and its load in one plan, the decode after it on the device.
  EXPECT_THAT(record.decisions, HasSubstr("unmerged:bgmv take-over=loaded load=0 run=0x20h\n"));
  ASSERT_EQ(record.step_log.size(), 4u);
  EXPECT_EQ(record.step_log[0].host_requests, 1);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_EQ(record.step_log[i].host_requests, 0);
  EXPECT_EQ(record.step_log[0].timing.load_wait, 0);
  EXPECT_EQ(record.step_log[1].timing.load_wait, load - record.step_log[0].end);
  EXPECT_GE(record.step_log[1].end - record.step_log[1].timing.busy(), load);
}

// OnDemand: the same plans, but that the prompt waits for its load.
TEST(Caraserve, WithoutTheHostAPromptWaitsForItsAdapter) {
  const RunRecord record = run(to_adapters({0}), "{cold: wait}");
  EXPECT_EQ(record.requests[0].prefill_start, kLoad);
  EXPECT_GT(record.requests[0].first_token, kLoad);
  EXPECT_THAT(record.decisions, HasSubstr("unmerged:bgmv load=0 run=0x20\n"));
  EXPECT_THAT(record.decisions, Not(HasSubstr("h\n")));
}

TEST(Caraserve, ADecodeMayStayOnTheHostUntilItsAdapterIsThere) {
  const RunRecord record = run(to_adapters({0}), "{loading: host}");
  EXPECT_LT(record.requests[0].last_token, kLoad);
  for (const StepRecord& step : record.step_log) {
    EXPECT_EQ(step.host_requests, 1);
    EXPECT_EQ(step.timing.load_wait, 0);
  }
}

// The first request's adapter is there when the second's begins to load.
TEST(Caraserve, ADecodeMayBeLeftOutUntilItsAdapterIsThere) {
  Workload workload = to_adapters({0, 1});
  workload.requests[0].output_tokens = workload.requests[0].output_limit_tokens = 60;
  workload.requests[1].arrival = kLoad + 10'000'000;
  for (const char* params : {"{loading: skip}", "{loading: wait}"}) {
    const RunRecord record = run(workload, params);
    TimeNs waited = 0;
    int alone_meanwhile = 0;  // steps of the first request while the second's adapter loads
    for (const StepRecord& step : record.step_log) {
      if (step.end <= workload.requests[1].arrival) continue;
      waited += step.timing.load_wait;
      if (step.end < workload.requests[1].arrival + kLoad && step.prompt_tokens == 0 &&
          step.requests == 1) {
        ++alone_meanwhile;
      }
    }
    if (std::string(params) == "{loading: skip}") {
      EXPECT_EQ(waited, 0);
      EXPECT_GE(alone_meanwhile, 5);
    } else {
      EXPECT_GT(waited, kLoad / 2);  // of the whole batch
      EXPECT_LE(alone_meanwhile, 1);
    }
  }
}

TEST(Caraserve, AnAdapterThatIsThereIsUsedThere) {
  const RunRecord record = run(to_adapters({0, 0}, 0.05), "");
  EXPECT_THAT(record.decisions, HasSubstr("run=0x20h\n"));
  EXPECT_THAT(record.decisions, HasSubstr("run=1x20\n"));
  EXPECT_EQ(record.replicas[0].loads, 1);
}

// The paper's Cached: nothing loads, and no memory is taken from the KV cache.
TEST(Caraserve, CachedAdaptersAreThereFromTheStart) {
  Workload workload = to_adapters({0, 1, 2, 3});
  test::RunOptions options;
  options.technique = "caraserve";
  options.engine = test::small_engine();
  options.engine.adapter_slots = 1;
  options.record.decision_text = true;
  const std::int64_t with_slot = test::run(workload, options).replicas[0].kv_blocks_total;
  options.engine.cached_adapters = true;
  const RunRecord record = test::run(workload, options);
  EXPECT_EQ(test::violation(workload, record), "");
  EXPECT_EQ(record.replicas[0].loads, 0);
  EXPECT_EQ(record.replicas[0].load_wait, 0);
  EXPECT_THAT(record.decisions, Not(HasSubstr("load=")));
  EXPECT_THAT(record.decisions, Not(HasSubstr("evict=")));
  EXPECT_THAT(record.decisions, Not(HasSubstr("h\n")));
  // The slot that the other run reserved.
  EXPECT_EQ(record.replicas[0].kv_blocks_total - with_slot, kLarge / (16 * kKiB));
  options.engine.adapter_memory = AdapterMemory::kUnified;  // pages of the KV cache: none either
  EXPECT_EQ(test::run(workload, options).replicas[0].loads, 0);
}

// S-LoRA's habit: an adapter leaves with its last request, and the next one finds it cold.
TEST(Caraserve, IdleAdaptersMayBeDropped) {
  EXPECT_EQ(run(to_adapters({0, 1, 0, 0}, 0.05), "").replicas[0].loads, 2);
  const RunRecord record = run(to_adapters({0, 1, 0, 0}, 0.05), "{idle: drop}");
  EXPECT_EQ(record.replicas[0].loads, 4);
  EXPECT_THAT(record.decisions, HasSubstr("evict=0\n"));
  EXPECT_EQ(run(to_adapters({0, 0, 0}, 0.001), "{idle: drop}").replicas[0].loads, 1);
}

// One prompt at a time, and all of them before the next decode.
TEST(Caraserve, PromptsComeBeforeDecodesOneAtATime) {
  const RunRecord record = run(to_adapters({0, 1, 2}), "");
  std::vector<int> prompts;
  for (const StepRecord& step : record.step_log) prompts.push_back(step.prompt_tokens);
  EXPECT_EQ(prompts, (std::vector<int>{20, 20, 20, 0, 0, 0}));
  const RunRecord together = run(to_adapters({0, 1, 2}), "{prefill_batch: 2}");
  EXPECT_EQ(together.step_log[0].prompt_tokens, 40);
  EXPECT_EQ(together.step_log[0].host_requests, 2);
}

// Without a slot for its adapter a request waits: it could not be decoded.
TEST(Caraserve, ARequestWaitsForASlot) {
  const RunRecord record = run(to_adapters({0, 1}), "", 1);
  EXPECT_GT(record.requests[1].prefill_start, record.requests[0].last_token - 1);
  EXPECT_THAT(record.decisions, HasSubstr("evict=0 load=1 run=1x20h\n"));
}

TEST(Caraserve, TellsHowActivationsAreCopiedAndWhenTheDeviceTakesOver) {
  EXPECT_THAT(run(to_adapters({0}), "{host_copy: pageable}").decisions,
              HasSubstr("unmerged:bgmv:pageable take-over=loaded load=0 run=0x20h\n"));
  EXPECT_THAT(run(to_adapters({0}), "{take_over: never}").decisions,
              HasSubstr("unmerged:bgmv load=0 run=0x20h\n"));
}

// Two requests at once, and one prompt a step: the second's adapter comes while it waits.
TEST(Caraserve, LoadsMayBeginBeforeARequestIsAdmitted) {
  const Workload workload = to_adapters({0, 1});
  EXPECT_THAT(run(workload, "{}").decisions, HasSubstr("take-over=loaded load=1 run=1x20h\n"));
  const RunRecord early = run(workload, "{load_at: arrival}");
  EXPECT_THAT(early.decisions, HasSubstr("load=0,1 run=0x20h\n"));
  EXPECT_THAT(early.decisions, HasSubstr(" run=1x20h\n"));
}

// Its capability says whether plans have LoRA on the host, as it is set up.
TEST(Caraserve, SaysWhetherItNeedsTheHost) {
  const auto needs = [](const char* params) {
    const auto technique = Registry<Technique>::instance().make("caraserve");
    ParamFields fields;
    technique->fields(fields);
    fields.bind(parse_yaml(params, "test"), "test");
    return technique->capabilities().host_lora;
  };
  EXPECT_TRUE(needs("{}"));
  EXPECT_FALSE(needs("{cold: wait}"));
  EXPECT_TRUE(needs("{cold: wait, loading: host}"));
  EXPECT_FALSE(Registry<Technique>::instance().make("slora")->capabilities().host_lora);
}

// Every setting through a burst with few slots and little memory, and one adapter pool in the KV's.
TEST(Caraserve, EverySettingServesEverything) {
  for (const char* params :
       {"{cold: wait}", "{loading: host}", "{loading: skip}", "{prefill_batch: 8}", "{idle: drop}",
        "{cold: wait, loading: skip, prefill_batch: 3}"}) {
    for (const auto memory : {AdapterMemory::kSlots, AdapterMemory::kUnified}) {
      for (std::uint64_t seed = 0; seed < 3; ++seed) {
        SCOPED_TRACE(std::string(params) + " seed " + std::to_string(seed));
        test::WorkloadShape shape;
        shape.adapters = 40;
        shape.burst = seed == 0;
        shape.max_prompt = 100;
        test::RunOptions options;
        options.technique = "caraserve";
        options.params = params;
        options.engine = test::small_engine();
        options.engine.adapter_slots = 2;
        options.engine.adapter_memory = memory;
        options.kv_blocks = 24;
        Workload workload = test::make_workload(shape, seed);
        for (Adapter& adapter : workload.adapters) adapter.bytes *= 2;
        EXPECT_EQ(test::violation(workload, test::run(workload, options)), "");
      }
    }
  }
}

}  // namespace
}  // namespace servelab
