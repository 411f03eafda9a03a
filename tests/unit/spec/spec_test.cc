// Specs: what they expand to, and what a point's key depends on.
#include "engine/spec/spec.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "engine/model/adapter_registry.h"
#include "tests/unit/spec/spec_testing.h"

namespace servelab {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace test;  // NOLINT: the tests' own words

TEST_F(SpecTest, ASampleKeepsAShareOfThePositionsAndALargerOneContainsIt) {
  const auto chosen = [this](const std::string& share) {
    std::string rates = "1";
    for (int rate = 2; rate <= 400; ++rate) rates += ", " + std::to_string(rate);
    std::set<std::string> positions;
    for (const SweepPosition& position :
         load(small() + "sweep:\n  - sample: " + share + "\n    workload.arrivals.rate: [" + rates +
              "]\n    engine.max_batch: [4, 8]\n")
             .positions) {
      positions.insert(position.text());
    }
    return positions;
  };
  const auto tenth = chosen("0.1"), half = chosen("0.5");
  EXPECT_NEAR(static_cast<double>(tenth.size()), 80, 30);
  EXPECT_NEAR(static_cast<double>(half.size()), 400, 60);
  EXPECT_TRUE(std::includes(half.begin(), half.end(), tenth.begin(), tenth.end()));
  EXPECT_EQ(chosen("1").size(), 800u);
  EXPECT_EQ(chosen("0.1"), tenth);
}

TEST_F(SpecTest, ASampleOfNothingOrOfMoreThanAllIsRefused) {
  const std::string sweep = "sweep: {engine.max_batch: [4, 8], sample: ";
  EXPECT_THAT(error_of(small() + sweep + "0.000001}\n"), HasSubstr("leaves no position"));
  EXPECT_THAT(error_of(small() + sweep + "2}\n"), HasSubstr("case.yaml:10"));
  EXPECT_THAT(error_of(small() + sweep + "0}\n"), HasSubstr("case.yaml:10"));
}

TEST_F(SpecTest, AProfileInPlaceOfOthersLeavesNoPositionTwice) {
  Spec spec = load(small() + "sweep: {hardware: [a100-80g, h100-80g], engine.max_batch: [4, 8]}\n");
  ASSERT_EQ(spec.positions.size(), 4u);
  use_profile("h200-141g", &spec);
  ASSERT_EQ(spec.positions.size(), 2u);
  EXPECT_EQ(spec.positions[0].text(), "hardware=h200-141g max_batch=4");
  EXPECT_EQ(spec.positions[1].text(), "hardware=h200-141g max_batch=8");
  EXPECT_EQ(spec.id, "case_profile");
}

// To YAML a plain null is nothing; as a backend or a technique it is a name.
TEST_F(SpecTest, NullIsANameWhereOneIsWanted) {
  const std::string before = std::string(kHead) + kWorkload;
  for (const std::string text :
       {"backend: null\ntechniques: [null]\n", "backend: \"null\"\ntechniques: ['null']\n",
        "techniques: [{technique: null, label: null}]\nsweep: {backend: [null]}\n",
        "description: \"\xC3\xA9\"\nbackend:   null # the harness\ntechniques: [null]\n",
        "techniques: [null]\nbackend: null"}) {
    SCOPED_TRACE(text);
    for (const char* start : {"", "\xEF\xBB\xBF"}) {
      const Spec spec = load(start + before + text);
      const PointSettings point =
          resolve_point(spec, spec.positions.front(), spec.techniques.front(), 0);
      EXPECT_EQ(point.backend, "null");
      EXPECT_EQ(point.technique_id, "null");
      EXPECT_EQ(spec.techniques.front().label, "null");
    }
  }
  EXPECT_EQ(error_of(before + "techniques: [null, {technique: null, label: other}]\n"), "");
}

TEST_F(SpecTest, NothingIsNoName) {
  const std::string before = std::string(kHead) + kWorkload;
  EXPECT_THAT(error_of(before + kTail + "backend: ~\n"), HasSubstr("case.yaml:10:1:"));
  EXPECT_THAT(error_of(before + kTail + "backend:\n"), HasSubstr("got nothing"));
  EXPECT_THAT(error_of(before + "backend:\n" + kTail), HasSubstr("got nothing"));
  EXPECT_THAT(error_of(before + "techniques: [~]\n"), HasSubstr("must be a name or a map"));
  EXPECT_THAT(error_of(before + kTail + "backend: nul\n"), HasSubstr("did you mean 'null'?"));
}

TEST_F(SpecTest, QuickSectionReplacesSettings) {
  const std::string text = small() +
                           "sweep: {workload.arrivals.rate: [1, 2, 3]}\nseeds: 4\n"
                           "quick: {workload.requests: 3, sweep: {workload.requests: [3, 4]}, "
                           "seeds: [7]}\n";
  const std::string path = folder_.file("case.yaml", text);
  EXPECT_EQ(load_spec(path, kExperiments).positions.size(), 3u);
  const Spec quick = load_spec(path, kExperiments, SpecForm::kQuick);
  EXPECT_THAT(quick.id, HasSubstr("-quick"));
  EXPECT_THAT(quick.swept, ElementsAre("workload.requests"));
  EXPECT_THAT(quick.seeds, ElementsAre(7));
  const auto error_of_quick = [&](const std::string& section) {
    try {
      load_spec(folder_.file("case.yaml", small() + section), kExperiments, SpecForm::kQuick);
      return std::string();
    } catch (const SpecError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_THAT(error_of_quick("quick: {wrkload.requests: 3}\n"),
              HasSubstr("case.yaml:10:9: cannot set 'wrkload.requests': unknown section"));
  EXPECT_THAT(error_of_quick("quick: 3\n"), HasSubstr("'quick' must be a map"));
  EXPECT_THAT(error_of_quick("quick: {with.alpha: 3}\n"), HasSubstr("'quick' cannot set"));
}

TEST_F(SpecTest, SmallestSpecHasOnePoint) {
  const Spec spec = load(small());
  EXPECT_EQ(spec.id, "case");
  EXPECT_EQ(spec.figure, "case");
  EXPECT_EQ(spec.positions.size(), 1u);
  EXPECT_THAT(spec.seeds, ElementsAre(0));
  EXPECT_EQ(spec.techniques.front().label, "slora");
  EXPECT_EQ(error_of(small()), "");
}

TEST_F(SpecTest, IdIsThePathBelowExperiments) {
  const Spec spec = load_spec(std::string(kExperiments) + "/smoke/dlora.yaml", kExperiments);
  EXPECT_EQ(spec.id, "smoke/dlora");
}

TEST_F(SpecTest, SweepIsACrossProductFirstKeySlowest) {
  const Spec spec = load(small() +
                         "sweep:\n"
                         "  workload.arrivals.rate: [1, 2]\n"
                         "  zip: [{engine.max_batch: 8, cluster.replicas: 1},\n"
                         "        {engine.max_batch: 4, cluster.replicas: 2}]\n");
  ASSERT_EQ(spec.positions.size(), 4u);
  EXPECT_EQ(spec.positions[0].text(), "rate=1 max_batch=8 replicas=1");
  EXPECT_EQ(spec.positions[1].text(), "rate=1 max_batch=4 replicas=2");
  EXPECT_EQ(spec.positions[3].text(), "rate=2 max_batch=4 replicas=2");
  EXPECT_THAT(spec.swept,
              ElementsAre("workload.arrivals.rate", "engine.max_batch", "cluster.replicas"));
  const PointSettings point = resolve_point(spec, spec.positions[3], spec.techniques.front(), 7);
  EXPECT_EQ(point.engine.limits.max_batch, 4);
  EXPECT_EQ(point.cluster.replicas, 2);
  EXPECT_EQ(point.seed, 7);
}

TEST_F(SpecTest, SweepOfSeveralMapsJoinsTheirPositions) {
  const Spec spec = load(
      std::string(kHead) + kWorkload +
      "techniques: [slora, dlora, punica]\n"
      "seeds: 2\n"
      "sweep:\n"
      "  - {techniques: [punica, slora], engine.max_batch: [4], workload.arrivals.rate: [1, 2]}\n"
      "  - {techniques: [dlora], workload.arrivals.rate: [2, 3], engine.max_batch: [4]}\n"
      "  - {workload.arrivals.rate: [4], engine.max_batch: [8]}\n");
  ASSERT_EQ(spec.positions.size(), 4u);
  EXPECT_EQ(spec.positions[0].text(), "max_batch=4 rate=1");
  EXPECT_THAT(spec.positions[0].techniques, ElementsAre(0, 2));
  EXPECT_THAT(spec.positions[1].techniques, ElementsAre(0, 1, 2));  // rate 2, of both maps
  EXPECT_EQ(spec.positions[2].text(), "max_batch=4 rate=3");  // paths in the first map's order
  EXPECT_THAT(spec.positions[2].techniques, ElementsAre(1));
  EXPECT_THAT(spec.positions[3].techniques, ElementsAre(0, 1, 2));
  EXPECT_EQ(spec.point_count(), (2u + 3u + 1u + 3u) * 2u);
  EXPECT_THAT(spec.swept, ElementsAre("engine.max_batch", "workload.arrivals.rate"));
}

TEST_F(SpecTest, TechniqueOverridesAndSweptParameters) {
  const Spec spec =
      load(std::string(kHead) + kWorkload +
           "cluster: {route: by-adapter}\n"
           "techniques:\n"
           "  - {technique: dlora, label: a, with: {alpha: 0.7}, route: round-robin}\n"
           "  - {technique: dlora, label: b, engine: {max_batch: 3}}\n"
           "  - slora\n"
           "sweep: {with.beta: [0.1, 0.2]}\n");
  const PointSettings a = resolve_point(spec, spec.positions[1], spec.techniques[0], 0);
  EXPECT_EQ(a.technique_params.find("alpha")->scalar, "0.7");
  EXPECT_EQ(a.technique_params.find("beta")->scalar, "0.2");
  EXPECT_EQ(a.route, "round-robin");
  const PointSettings b = resolve_point(spec, spec.positions[0], spec.techniques[1], 0);
  EXPECT_EQ(b.engine.limits.max_batch, 3);
  EXPECT_EQ(b.route, "by-adapter");
  EXPECT_EQ(
      resolve_point(spec, spec.positions[0], spec.techniques[2], 0).technique_params.find("beta"),
      nullptr);
}

TEST_F(SpecTest, WorkloadExtendsAFile) {
  folder_.file("shared.yaml", std::string(kWorkload).substr(10));
  const std::string text =
      std::string(kHead) + "workload: {extends: ./shared.yaml, arrivals: {rate: 9}}\n" + kTail;
  const Spec spec = load(text);
  const ConfigNode& workload = *spec.positions[0].settings.find("workload");
  EXPECT_EQ(workload.find("arrivals")->find("rate")->scalar, "9");
  EXPECT_EQ(workload.find("arrivals")->find("process")->scalar, "poisson");
  EXPECT_EQ(workload.find("extends"), nullptr);
  EXPECT_EQ(error_of(text), "");
}

TEST_F(SpecTest, SeedsAreAListOrACount) {
  EXPECT_THAT(load(small() + "seeds: 3\n").seeds, ElementsAre(0, 1, 2));
  EXPECT_THAT(load(small() + "seeds: [5, 9]\n").seeds, ElementsAre(5, 9));
  EXPECT_THAT(error_of(small() + "seeds: [5, 5]\n"), HasSubstr("seed 5 is given twice"));
  EXPECT_THAT(error_of(small() + "seeds: 0\n"), HasSubstr("case.yaml:10:1: 'seeds'"));
  EXPECT_THAT(error_of(small() + "seeds: [-1]\n"), HasSubstr(">= 0"));
}

TEST_F(SpecTest, KeyDependsOnWhatMatters) {
  const std::string base = key_of(small());
  EXPECT_EQ(base.size(), 16u);
  EXPECT_EQ(base, key_of(small()));
  // A default written out, a title, another order or a label change nothing.
  EXPECT_EQ(base, key_of(small() + "engine: {max_batch: 256}\n"));
  EXPECT_EQ(base, key_of("description: more\n" + small()));
  EXPECT_EQ(base, key_of(std::string(kHead) + kTail + kWorkload));
  EXPECT_EQ(base, key_of(std::string(kHead) + kWorkload +
                         "techniques: [{technique: slora, label: S-LoRA}]\n"));
  std::set<std::string> keys = {base};
  keys.insert(key_of(small(), 0, 1));
  keys.insert(key_of(small() + "engine: {max_batch: 32}\n"));
  keys.insert(key_of(small() + "cluster: {replicas: 2}\n"));
  keys.insert(key_of(small() + "record: {series_bin_s: 2}\n"));
  keys.insert(key_of(std::string(kHead) + kWorkload + "techniques: [punica]\n"));
  keys.insert(key_of(small() + "sweep: {workload.arrivals.rate: [6]}\n"));
  EXPECT_EQ(keys.size(), 7u);
}

// Another value than the present one; false where the field takes none of those tried.
bool change(const ParamField& field) {
  const ConfigNode before = field.value();
  std::vector<std::string> values = field.choices();
  for (const char* value :
       {"true", "false", "0", "1", "2", "3", "4", "0.5", "64", "4096", "q", "v"}) {
    values.emplace_back(value);
  }
  for (const std::string& value : values) {
    for (const bool is_list : {false, true}) {
      try {
        field.assign(parse_yaml(is_list ? "[" + value + "]" : value, "test"));
        if (canonical_json(field.value()) != canonical_json(before)) return true;
      } catch (const SpecError&) {
      }
    }
  }
  return false;
}

// What is left out of the key lets a result stand for another: of every section's fields, one by
// one.
TEST_F(SpecTest, EveryFieldIsPartOfTheKey) {
  const Spec spec = load(small());
  const PointSettings point = resolve_point(spec, spec.positions[0], spec.techniques[0], 0);
  const BuiltWorkload workload = build_point_workload(point, "");
  const std::string key = point_key(effective_settings(point, workload), workload);
  int fields = 0;
  const auto check = [&](const char* name, const auto& section_of) {
    ParamFields plain;
    PointSettings first = point;
    section_of(&first)->fields(plain);
    for (std::size_t i = 0; i < plain.all().size(); ++i) {
      PointSettings copy = point;
      ParamFields all;
      section_of(&copy)->fields(all);
      const ParamField& field = all.all()[i];
      if (field.name() == "route") continue;             // resolved, below
      if (field.name() == "bytes_per_weight") continue;  // always 2
      if (!change(field)) {
        ADD_FAILURE() << name << "." << field.name() << ": no other value was found";
        continue;
      }
      ++fields;
      EXPECT_NE(point_key(effective_settings(copy, workload), workload), key)
          << name << "." << field.name();
    }
  };
  check("engine", [](PointSettings* s) { return &s->engine; });
  check("cluster", [](PointSettings* s) { return &s->cluster; });
  check("lora", [](PointSettings* s) { return &s->lora; });
  check("runtime", [](PointSettings* s) { return &s->runtime; });
  check("record", [](PointSettings* s) { return &s->record; });
  check("model", [](PointSettings* s) { return &s->model; });
  EXPECT_GT(fields, 60);
  PointSettings other = point;
  other.route = "random";
  EXPECT_NE(point_key(effective_settings(other, workload), workload), key);
}

TEST_F(SpecTest, MissingFileNamesNearestSpec) {
  const Library library(kExperiments);
  try {
    library.find_spec("smoke/dlroa");
    FAIL();
  } catch (const SpecError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no such spec; did you mean 'smoke/dlora'?"));
  }
}

TEST_F(SpecTest, TooLittleMemoryNamesTheSpecAndTheKey) {
  Spec spec = load(small());
  EXPECT_EQ(too_little_memory(spec),
            "not enough memory for a workload; lower workload.requests (now 20): a request takes "
            "about 250 bytes");
}

// What was registered counts, whatever lora.targets says.
TEST_F(SpecTest, RegisteredAdaptersHaveTheirOwnBytes) {
  const ModelConfig model =
      load_model_config(std::string(kExperiments) + "/base/model/llama-134m.yaml");
  const std::vector<std::string> targets = {"q", "v", "down"};
  AdapterRegistry registry(folder_ / "adapters.sqlite", AdapterRegistry::Open::kCreate);
  for (const int rank : {4, 16}) {
    const std::string name = "r" + std::to_string(rank);
    save_peft_adapter(*random_adapter(model, name, rank, targets, 1), model, folder_ / name);
    registry.add(name, folder_ / name, model);
  }
  const Spec spec = load(
      "title: test\nmodel: llama-134m\nhardware: a800-80g\nlora: {targets: [q]}\n"
      "runtime: {registry: " +
      (folder_ / "adapters.sqlite") +
      "}\nworkload:\n  requests: 20\n  adapters: {count: 2, ranks: [8]}\n"
      "  arrivals: {process: poisson, rate: 5}\n"
      "  lengths: {source: fixed, prompt: 16, output: 4}\n" +
      kTail);
  const PointSettings point = resolve_point(spec, spec.positions[0], spec.techniques[0], 0);
  const std::vector<Adapter> adapters = build_point_workload(point, "").workload.adapters;
  ASSERT_EQ(adapters.size(), 2u);
  EXPECT_EQ(adapters[0].name, "r16");
  EXPECT_EQ(adapters[0].bytes, model.lora_bytes(16, targets));
  EXPECT_EQ(adapters[1].bytes, model.lora_bytes(4, targets));
}

TEST_F(SpecTest, RunWithoutRequestsIsInvalid) {
  const Spec spec = load(std::string(kHead) +
                         "workload:\n  duration_s: 1e-9\n  adapters: {count: 4, ranks: [8]}\n"
                         "  arrivals: {process: poisson, rate: 1}\n"
                         "  lengths: {source: fixed, prompt: 16, output: 4}\n" +
                         kTail);
  const PointSettings point = resolve_point(spec, spec.positions[0], spec.techniques[0], 0);
  const BuiltWorkload workload = build_point_workload(point, "");
  ASSERT_TRUE(workload.workload.requests.empty());
  EXPECT_THAT(run_point(point, workload.workload).record.invalid_reasons,
              ElementsAre("the workload has no requests"));
}

TEST_F(SpecTest, PointThatDoesNotFitIsInvalid) {
  const Spec spec = load(small() + "engine: {memory_fraction: 0.05}\n");
  const PointSettings point = resolve_point(spec, spec.positions[0], spec.techniques[0], 0);
  const BuiltWorkload workload = build_point_workload(point, "");
  const PointResult result = run_point(point, workload.workload);
  ASSERT_EQ(result.record.invalid_reasons.size(), 1u);
  EXPECT_THAT(result.record.invalid_reasons[0], HasSubstr("does not fit"));
  EXPECT_EQ(value_of(result.summary, "requests_unfinished"), 20);
}

}  // namespace
}  // namespace servelab
