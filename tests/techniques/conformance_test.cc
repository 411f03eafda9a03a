// Every registered technique x 3 seeds x the situations that break schedulers: the run finishes,
// breaks no invariant (Replica::apply throws), and loses or duplicates no request.
#include <gtest/gtest.h>

#include <cstdlib>

#include "engine/core/rng.h"
#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

using test::RunOptions;
using test::WorkloadShape;

struct Situation {
  const char* name;
  WorkloadShape workload;
  RunOptions options;
};

std::vector<Situation> situations() {
  std::vector<Situation> all;
  const auto add = [&](const char* name, auto&& change) {
    Situation s{name, {}, {}};
    s.options.engine = test::small_engine();
    change(&s.workload, &s.options);
    all.push_back(s);
  };
  add("steady", [](WorkloadShape* w, RunOptions*) { w->rate_per_s = 200; });
  add("burst", [](WorkloadShape* w, RunOptions*) { w->burst = true; });
  add("one_token", [](WorkloadShape* w, RunOptions*) { w->max_prompt = w->max_output = 1; });
  add("base_model_only", [](WorkloadShape* w, RunOptions*) { w->base_share = 1; });
  add("tight_memory", [](WorkloadShape* w, RunOptions* o) {
    w->burst = true;
    w->base_share = 0;
    o->kv_blocks = 40;  // two or three requests
  });
  add("prompts_longer_than_memory", [](WorkloadShape* w, RunOptions* o) {
    w->max_prompt = 900;
    o->kv_blocks = 30;
  });
  add("prompts_longer_than_the_token_budget", [](WorkloadShape* w, RunOptions* o) {
    w->max_prompt = 900;
    o->kv_blocks = 200;
    o->engine.limits.max_batch_tokens = 128;
  });
  add("more_adapters_than_fit", [](WorkloadShape* w, RunOptions* o) {
    w->adapters = 100;
    o->engine.adapter_slots = 3;
  });
  add("more_adapters_than_fit_in_a_burst", [](WorkloadShape* w, RunOptions* o) {
    w->adapters = 40;
    w->burst = true;
    o->engine.adapter_slots = 2;
    o->kv_blocks = 60;
  });
  add("adapters_in_the_memory_of_kv", [](WorkloadShape* w, RunOptions* o) {
    w->adapters = 40;
    w->burst = true;
    w->max_prompt = 100;
    o->engine.adapter_memory = AdapterMemory::kUnified;
    o->kv_blocks = 24;
  });
  add("one_request_at_a_time", [](WorkloadShape* w, RunOptions* o) {
    w->burst = true;
    o->engine.limits.max_batch = 1;
  });
  add("three_replicas", [](WorkloadShape* w, RunOptions* o) {
    w->burst = true;
    o->replicas = 3;
  });
  add("few_may_wait", [](WorkloadShape* w, RunOptions* o) {
    w->burst = true;
    w->adapters = 40;
    o->engine.adapter_slots = 2;
    o->kv_blocks = 60;
    o->max_waiting = 3;
  });
  add("adapters_on_some_replicas_only", [](WorkloadShape* w, RunOptions* o) {
    w->burst = true;
    o->replicas = 3;
    o->repository_copies = 2;
    o->route = "least-loaded";  // some techniques' own place adapters themselves
  });
  return all;
}

class Conformance : public ::testing::TestWithParam<std::string> {};

TEST_P(Conformance, FinishesEverySituation) {
  for (const Situation& situation : situations()) {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      SCOPED_TRACE(GetParam() + " / " + situation.name + " / seed " + std::to_string(seed));
      const Workload workload = test::make_workload(situation.workload, seed);
      RunOptions options = situation.options;
      options.technique = GetParam();
      RunRecord record;
      ASSERT_NO_THROW(record = test::run(workload, options));
      EXPECT_EQ(test::violation(workload, record), "");
    }
  }
}

TEST_P(Conformance, RejectsOnlyWhatCanNeverFit) {
  WorkloadShape shape;
  shape.max_prompt = 900;
  RunOptions options;
  options.engine = test::small_engine();
  options.technique = GetParam();
  options.kv_blocks = 30;
  const Workload workload = test::make_workload(shape, 7);
  const RunRecord record = test::run(workload, options);
  int rejected = 0;
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    const RequestRecord& r = record.requests[i];
    if (r.status != RequestStatus::kRejected) continue;
    ++rejected;
    EXPECT_EQ(r.reject_reason, RejectReason::kTooLong);
    EXPECT_GT(workload.requests[i].prompt_tokens, 200) << "a short prompt was rejected";
  }
  EXPECT_GT(rejected, 0);
  EXPECT_LT(rejected, static_cast<int>(workload.requests.size()));
}

TEST_P(Conformance, SameSeedSameDecisions) {
  RunOptions options;
  options.engine = test::small_engine();
  options.technique = GetParam();
  options.record.decision_text = true;
  options.kv_blocks = 60;
  const Workload workload = test::make_workload({}, 3);
  const RunRecord a = test::run(workload, options);
  const RunRecord b = test::run(workload, options);
  EXPECT_EQ(a.decisions, b.decisions);
  EXPECT_EQ(a.decision_hash.value(), b.decision_hash.value());
  EXPECT_FALSE(a.decisions.empty());
}

// Prompts as long as the step's token budget must not make others wait for an empty replica.
TEST_P(Conformance, PromptsNearTheTokenBudgetAreNoCliff) {
  const auto run_time = [&](int prompt) {
    RunOptions options;
    options.engine = test::small_engine();
    options.technique = GetParam();
    options.kv_blocks = 2000;
    Workload workload = test::make_workload({}, 1);
    for (std::size_t i = 0; i < workload.requests.size(); ++i) {
      Request& r = workload.requests[i];
      r.adapter = AdapterId{0};
      r.arrival = static_cast<TimeNs>(i) * from_seconds(0.02);
      r.prompt_tokens = prompt;
      r.output_tokens = r.output_limit_tokens = 40;
    }
    return to_seconds(test::run(workload, options).end);
  };
  const int budget = test::small_engine().limits.max_batch_tokens;
  const double below = run_time(budget - 20);
  EXPECT_LT(run_time(budget), 1.3 * below);
  EXPECT_LT(run_time(budget + 100), 1.8 * below);
}

// Adapters share the KV cache's blocks, and when the first request ends, others of its adapter hold
// nearly all of them: one must give way to the adapter of the second, now the oldest. (Policies
// that serve one adapter at a time stalled; found by random histories.)
TEST_P(Conformance, TheOldestGetsRoomForItsAdapterAmongKv) {
  Workload workload;
  for (const Bytes blocks : {1, 4}) {
    workload.adapters.push_back(
        Adapter{"a" + std::to_string(blocks), ModelId{}, 8, blocks * 16 * kKiB});
  }
  const auto add = [&](std::uint32_t adapter, int prompt, int output) {
    workload.requests.push_back({0, AdapterId{adapter}, ModelId{}, prompt, output, output});
  };
  add(0, 16, 3);
  add(1, 16, 3);
  for (int i = 0; i < 4; ++i) add(0, 60, 4);
  RunOptions options;
  options.engine = test::small_engine();
  options.engine.adapter_memory = AdapterMemory::kUnified;
  options.technique = GetParam();
  options.kv_blocks = 18;
  const RunRecord record = test::run(workload, options);
  EXPECT_EQ(test::violation(workload, record), "");
}

// Settings under which a technique's plans hold for other reasons than by default.
std::vector<std::string> settings_of(const std::string& technique) {
  if (technique == "slora") {
    return {"{}",
            "{retry: true}",
            "{admit_every: 0}",
            "{admit_every: 3}",
            "{prefetch: false}",
            "{early_abort: true, ttft_slo_s: 0.6}",
            "{max_running: 3, retry: true}"};
  }
  if (technique == "punica") return {"{}", "{prefills_per_step: 4}"};
  if (technique == "peft") return {"{}", "{merge: false}", "{switch_after: 2}", "{batch: prefix}"};
  if (technique == "dlora") {
    return {"{}", "{break_iterations: 5}", "{starve_credit: 3}", "{alpha: 0.5, gamma_dec: 0.2}"};
  }
  if (technique == "dlora-artifact") return {"{}", "{credit: 2, credit_band: 1}", "{alpha: 0.4}"};
  if (technique == "caraserve") {
    return {"{}",
            "{cold: wait}",
            "{loading: host}",
            "{loading: skip}",
            "{load_at: arrival}",
            "{idle: drop}",
            "{take_over: never, prefill_batch: 3}"};
  }
  if (technique == "vllm-uniform") return {"{}", "{resident_models: 1}", "{batch: prefix}"};
  return {"{}"};
}

template <class T>
T one_of(RngStream* rng, std::initializer_list<T> choices) {
  return choices.begin()[rng->below(choices.size())];
}

// Anything that a run may be: light and heavy, short and long, with room and without.
Situation random_situation(const std::string& technique, std::uint64_t seed) {
  RngStream rng(seed, "situation");
  Situation s{"random", {}, {}};
  WorkloadShape& w = s.workload;
  w.requests = 10 + static_cast<int>(rng.below(40));
  w.adapters = one_of(&rng, {1, 2, 5, 12, 30});
  w.burst = rng.below(4) == 0;
  w.rate_per_s = one_of(&rng, {3.0, 20.0, 100.0, 1000.0});
  w.base_share = one_of(&rng, {0.0, 0.1, 1.0});
  w.max_prompt = one_of(&rng, {1, 40, 200, 700});
  w.max_output = one_of(&rng, {1, 10, 100, 300});
  RunOptions& o = s.options;
  o.technique = technique;
  const std::vector<std::string> settings = settings_of(technique);
  o.params = settings[rng.below(settings.size())];
  o.engine.limits.max_batch = one_of(&rng, {1, 4, 16, 64});
  o.engine.limits.max_batch_tokens = one_of(&rng, {64, 128, 512});
  o.engine.limits.max_batch_tokens =
      std::max(o.engine.limits.max_batch_tokens, 2 * o.engine.limits.max_batch);
  o.engine.adapter_slots = one_of(&rng, {0, 1, 2, 4});
  if (rng.below(3) == 0) o.engine.adapter_memory = AdapterMemory::kUnified;
  o.kv_blocks = one_of(&rng, {24, 50, 100, 400, 2000});
  o.replicas = one_of(&rng, {1, 1, 2, 3});
  if (technique == "dlora-artifact" && rng.below(2) == 0) o.route = "dlora-artifact-proactive";
  if (rng.below(4) == 0) o.max_waiting = 3;
  if (rng.below(6) == 0) o.stop_at = from_seconds(0.3);
  o.record.bin = one_of(&rng, {from_seconds(1), from_seconds(0.01), from_seconds(0.003)});
  o.key_ns =
      one_of<TimeNs>(&rng, {0, 10, 10'000, 100'000});  // from nothing to all of a step's time
  o.record.decision_text = rng.below(2) == 0;          // as text the log is made from whole plans
  return s;
}

// A replica that repeats a plan by itself records what it does where it asks for every step.
TEST_P(Conformance, RepeatingIsStepping) {
  const char* asked = std::getenv("SERVELAB_HISTORIES");
  const std::uint64_t histories = asked != nullptr ? std::stoull(asked) : 40;
  std::int64_t steps = 0, repeated = 0;
  for (std::uint64_t seed = 0; seed < histories; ++seed) {
    Situation s = random_situation(GetParam(), seed);
    SCOPED_TRACE(GetParam() + " " + s.options.params + " / history " + std::to_string(seed));
    const Workload workload = test::make_workload(s.workload, seed);
    RunRecord by_itself, stepping;
    try {
      by_itself = test::run(workload, s.options);
    } catch (const SpecError&) {  // does not fit the device at all
      continue;
    }
    s.options.step_by_step = true;
    stepping = test::run(workload, s.options);
    ASSERT_EQ(test::difference(by_itself, stepping), "");
    EXPECT_EQ(stepping.repeated_steps, 0);
    steps += stepping.steps;
    repeated += by_itself.repeated_steps;
  }
  RecordProperty("repeated", std::to_string(repeated) + " of " + std::to_string(steps));
  EXPECT_GT(repeated, steps / 10) << "of " << steps;
}

INSTANTIATE_TEST_SUITE_P(Techniques, Conformance,
                         ::testing::ValuesIn(Registry<Technique>::instance().names()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(TechniqueRegistry, HoldsTheTechniquesOfThisRelease) {
  const auto names = Registry<Technique>::instance().names();
  for (const char* expected :
       {"caraserve", "dlora", "dlora-artifact", "merged-only", "null", "peft", "peft-2023",
        "punica", "slora", "template", "unmerged-only", "vllm-uniform"}) {
    EXPECT_NE(std::find(names.begin(), names.end(), expected), names.end()) << expected;
  }
}

TEST(TechniqueRegistry, UnknownNameListsTheKnown) {
  try {
    Registry<Technique>::instance().make("slorra");
    FAIL() << "an unknown technique was made";
  } catch (const SpecError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean 'slora'?"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("merged-only"), std::string::npos);
  }
}

}  // namespace
}  // namespace servelab
