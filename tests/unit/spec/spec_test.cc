// Specs: what they expand to, what a point's key depends on, and what every mistake is answered
// with: file, line, column and the nearest valid name.
#include "engine/spec/spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "engine/model/adapter_registry.h"
#include "engine/run/point.h"
#include "engine/run/spec_check.h"
#include "tests/support/program.h"

namespace servelab {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kExperiments = SERVELAB_SOURCE_DIR "/experiments";

constexpr const char* kHead =
    "title: test\n"          // 1
    "model: llama-2-7b\n"    // 2
    "hardware: a800-80g\n";  // 3
constexpr const char* kWorkload =
    "workload:\n"                                           // 4
    "  requests: 20\n"                                      // 5
    "  adapters: {count: 4, ranks: [8]}\n"                  // 6
    "  arrivals: {process: poisson, rate: 5}\n"             // 7
    "  lengths: {source: fixed, prompt: 16, output: 4}\n";  // 8
constexpr const char* kTail = "techniques: [slora]\n";      // 9

std::string small() { return std::string(kHead) + kWorkload + kTail; }

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

class SpecTest : public ::testing::Test {
 protected:
  Spec load(const std::string& text) {
    return load_spec(folder_.file("case.yaml", text), kExperiments);
  }
  // Loads and checks; returns the error without the folder, or "" when all is well.
  std::string error_of(const std::string& text) {
    try {
      check_spec(load(text), "", true);
      return "";
    } catch (const SpecError& error) {
      std::string what = error.what();
      const std::string prefix = folder_.path() + "/";
      if (what.rfind(prefix, 0) == 0) what = what.substr(prefix.size());
      EXPECT_EQ(what.find('\n'), std::string::npos) << what;
      return what;
    }
  }
  std::string key_of(const std::string& text, std::size_t position = 0, std::int64_t seed = 0) {
    const Spec spec = load(text);
    const PointSettings point =
        resolve_point(spec, spec.positions.at(position), spec.techniques.front(), seed);
    const BuiltWorkload workload = build_point_workload(point, "");
    return point_key(effective_settings(point, workload), workload);
  }

  test::TemporaryFolder folder_;
};

// To YAML a plain null is nothing; as a backend or a technique it is a name.
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

struct Mistake {
  const char* name;
  std::string text;
  std::vector<std::string> expected;  // parts of the message, the place first
};

class SpecMistakes : public SpecTest, public ::testing::WithParamInterface<Mistake> {};

TEST_P(SpecMistakes, AreToldWithPlaceAndRemedy) {
  const std::string error = error_of(GetParam().text);
  for (std::string part : GetParam().expected) {
    const bool is_end = part.back() == '$';
    if (is_end) part.pop_back();
    EXPECT_THAT(error, HasSubstr(part));
    EXPECT_TRUE(!is_end || error.ends_with(part)) << error;
  }
}

std::string titled(const std::string& title) {
  return "title: " + title + "\nmodel: llama-2-7b\nhardware: a800-80g\n" + kWorkload + kTail;
}
std::string labelled(const std::string& label) {
  return std::string(kHead) + kWorkload + "techniques: [{technique: slora, label: " + label +
         "}]\n";
}
std::string workload_with(const std::string& line) {
  return std::string(kHead) + kWorkload + "  " + line + "\n" + kTail;
}

std::string with(const std::string& tail) { return small() + tail; }
std::string head_with(const char* model, const char* hardware) {
  return std::string("title: t\nmodel: ") + model + "\nhardware: " + hardware + "\n" + kWorkload +
         kTail;
}

INSTANTIATE_TEST_SUITE_P(
    All, SpecMistakes,
    ::testing::Values(
        Mistake{"unknown_key",
                with("techniqes: [slora]\n"),
                {"case.yaml:10:1:", "unknown key 'techniqes'", "did you mean 'techniques'?"}},
        Mistake{"unknown_engine_key",
                with("engine: {max_bach: 3}\n"),
                {"case.yaml:10:10:", "did you mean 'max_batch'?"}},
        Mistake{"unknown_workload_key",
                with("sweep: {workload.arrivals.rat: [1]}\n"),
                {"case.yaml:10:", "unknown key 'rat'", "did you mean 'rate'?"}},
        Mistake{"unknown_sweep_section",
                with("sweep: {worklod.arrivals.rate: [1]}\n"),
                {"case.yaml:10:9:", "did you mean 'workload'?"}},
        Mistake{"sweep_not_a_list",
                with("sweep: {engine.max_batch: 3}\n"),
                {"case.yaml:10:9:", "must be a list"}},
        Mistake{"swept_twice",
                with("sweep: {engine.max_batch: [1], zip: [{engine.max_batch: 2}]}\n"),
                {"case.yaml:10:", "is swept twice"}},
        Mistake{"uneven_zip",
                with("sweep: {zip: [{engine.max_batch: 2}, {cluster.replicas: 2}]}\n"),
                {"case.yaml:10:", "'engine.max_batch' is missing"}},
        Mistake{"no_such_parameter",
                with("sweep: {with.alpa: [1]}\n"),
                {"case.yaml:10:", "no technique of this spec has a parameter 'alpa'"}},
        Mistake{"wrong_type",
                with("engine: {max_batch: many}\n"),
                {"case.yaml:10:10:", "'max_batch' must be a whole number", "got 'many'"}},
        Mistake{
            "fraction", with("cluster: {replicas: 1.5}\n"), {"case.yaml:10:11:", "a whole number"}},
        Mistake{"impossible",
                with("engine: {memory_fraction: 1.5}\n"),
                {"case.yaml:10:10:", ">= 0.01 and <= 1", "got '1.5'"}},
        Mistake{"negative_bound",
                with("cluster: {max_waiting: -1}\n"),
                {"case.yaml:10:11:", "'max_waiting' must be a whole number, >= 0", "got '-1'"}},
        Mistake{"unknown_way_when_full",
                with("cluster: {max_waiting: 5, when_full: drop}\n"),
                {"case.yaml:10:", "'when_full'", "wait, reject", "got 'drop'"}},
        Mistake{"negative_rate",
                with("sweep: {workload.arrivals.rate: [2, -3]}\n"),
                {"case.yaml:10:", "'rate' must be a number, >= 0", "got '-3'"}},
        Mistake{"unknown_technique",
                std::string(kHead) + kWorkload + "techniques: [slora, dlorra]\n",
                {"case.yaml:9:21:", "unknown technique 'dlorra'", "did you mean 'dlora'?"}},
        Mistake{
            "unknown_parameter",
            std::string(kHead) + kWorkload + "techniques: [{technique: dlora, with: {alhpa: 1}}]\n",
            {"case.yaml:9:", "technique 'dlora'", "did you mean 'alpha'?"}},
        Mistake{"unknown_technique_key",
                std::string(kHead) + kWorkload + "techniques: [{technique: dlora, whit: {}}]\n",
                {"case.yaml:9:", "unknown key 'whit'", "did you mean 'with'?"}},
        Mistake{"same_label",
                std::string(kHead) + kWorkload + "techniques: [slora, slora]\n",
                {"case.yaml:9:", "listed twice", "label"}},
        Mistake{"unknown_route",
                with("cluster: {route: round-robbin}\n"),
                {"case.yaml:10:", "unknown cluster policy", "did you mean 'round-robin'?"}},
        Mistake{"unknown_model",
                head_with("llama-2-7", "a800-80g"),
                {"case.yaml:2:1:", "unknown model 'llama-2-7'", "did you mean 'llama-2-7b'?"}},
        Mistake{"unknown_hardware",
                head_with("llama-2-7b", "a800"),
                {"case.yaml:3:1:", "unknown hardware 'a800'", "a800-80g"}},
        Mistake{"missing_model_file",
                head_with("./none.yaml", "a800-80g"),
                {"case.yaml:2:1:", "model file './none.yaml' does not exist"}},
        Mistake{"unknown_workload",
                std::string(kHead) + "workload: mafia\n" + kTail,
                {"case.yaml:4:1:", "unknown workload 'mafia'"}},
        Mistake{"missing_title",
                "model: llama-2-7b\nhardware: a800-80g\n" + std::string(kWorkload) + kTail,
                {"case.yaml:1:1:", "needs 'title'"}},
        Mistake{"missing_techniques",
                std::string(kHead) + kWorkload,
                {"case.yaml:1:1:", "needs 'techniques'"}},
        Mistake{"unknown_backend",
                with("backend: twn\n"),
                {"case.yaml:10:1:", "one of cpu, cuda, null, twin", "did you mean 'twin'?"}},
        Mistake{"uneven_split", with("cluster: {tensor_parallel: 3}\n"), {"case.yaml:10:1:"}},
        Mistake{"unknown_claim",
                with("expect: [dlora/fig10-merged-maen]\n"),
                {"case.yaml:10:10:", "unknown claim", "did you mean 'dlora/fig10-merged-mean'?"}},
        Mistake{"claim_is_a_map",
                with("expect: [{claim: x}]\n"),
                {"case.yaml:10:10:", "must be the id of a claim in claims.yaml"}},
        Mistake{"sweep_maps_on_other_paths",
                with("sweep: [{engine.max_batch: [1]}, {cluster.replicas: [2]}]\n"),
                {"case.yaml:10:", "must set the same paths as the first one"}},
        Mistake{"sweep_maps_overlap",
                with("sweep: [{engine.max_batch: [1]}, {engine.max_batch: [2, 1]}]\n"),
                {"case.yaml:10:", "two maps of 'sweep' have 'max_batch=1' for the same"}},
        Mistake{"sweep_for_nobody",
                with("sweep: [{engine.max_batch: [1], techniques: [slorra]}]\n"),
                {"case.yaml:10:", "labelled 'slorra'", "did you mean 'slora'?"}},
        Mistake{"sweep_of_no_maps", with("sweep: []\n"), {"case.yaml:10:", "has no values"}},
        Mistake{"not_yaml", "title: [\n", {"case.yaml:", "not valid YAML"}},
        Mistake{"key_twice", with("seeds: 1\nseeds: 2\n"), {"case.yaml:11:1:", "given twice"}},
        Mistake{"empty_file", "", {"case.yaml:1:1:", "must be a map"}},
        Mistake{"nested_without_end",
                small() + "x: " + std::string(100'000, '[') + std::string(100'000, ']') + "\n",
                {"case.yaml:10:68: nested deeper than 64 levels"}},
        Mistake{"values_without_end",
                small() + "x: [a" + repeated(",a", 1'000'000) + "]\n",
                {"case.yaml:10:", "more than a million values"}},
        Mistake{"target_twice",
                with("lora: {targets: [q, k, q]}\n"),
                {"case.yaml:10:24:", "'targets' has 'q' twice"}},
        Mistake{"no_targets",
                with("lora: {targets: []}\n"),
                {"case.yaml:10:", "'targets' must name at least one layer"}},
        Mistake{"label_of_two_lines",
                labelled("\"a\\nb\""),
                {"case.yaml:9:", "'label' must be one line", "got 'a?b'"}},
        Mistake{"label_with_escape",
                labelled("\"\\e[31m\""),
                {"case.yaml:9:", "'label' must be one line without control characters"}},
        Mistake{"label_not_utf8", labelled("\"\xC3(\""), {"case.yaml:9:", "UTF-8"}},
        Mistake{"title_not_utf8", titled("\xFFx"), {"case.yaml:1:", "UTF-8"}},
        Mistake{
            "title_of_two_lines", titled("\"a\\tb\""), {"case.yaml:1:1:", "'title' must be one"}},
        Mistake{"title_without_end",
                titled("\"half"),
                {"case.yaml:1:1:", "'title' runs on", "quote is not closed"}},
        Mistake{"figure_is_a_map",
                with("figure: {a: b}\n"),
                {"case.yaml:10:1:", "'figure' must name a drawing such as dlora/fig10"}},
        Mistake{"figure_is_no_name",
                with("figure: ../evil\n"),
                {"case.yaml:10:1:", "'figure' must name a drawing", "got '../evil'"}},
        Mistake{"value_twice",
                with("sweep: {engine.max_batch: [1, 2, 1]}\n"),
                {"case.yaml:10:34:", "the sweep of 'engine.max_batch' has '1' twice"}},
        Mistake{"value_twice_in_other_words",
                with("sweep: {workload.arrivals.rate: [1, 1.0]}\n"),
                {"case.yaml:10:37:", "has '1.0' twice"}},
        Mistake{"list_twice",
                with("sweep: {workload.adapters.ranks: [[8, 16], [8.0, 1.6e1]]}\n"),
                {"case.yaml:10:", "twice"}},
        Mistake{"zip_twice",
                with("sweep: {zip: [{engine.max_batch: 2}, {engine.max_batch: 2}]}\n"),
                {"case.yaml:10:", "'zip' has", "twice"}},
        Mistake{"too_many_requests",
                std::string(kHead) + "workload: {requests: 1e9, arrivals: {rate: 1}}\n" + kTail,
                {"case.yaml:4:12:", "'1e9' would need about 250 GB of memory"}},
        Mistake{"several_models",
                workload_with("models: 2"),
                {"case.yaml:9:3:",
                 "workload.models: no technique here serves several base models yet"}},
        Mistake{"too_few_slots",
                std::string(kHead) + kWorkload +
                    "techniques: [{technique: dlora, engine: {adapter_slots: 1}}]\n",
                {"case.yaml:9:", "technique 'dlora': engine.adapter_slots is 1"}},
        Mistake{"second_document", with("---\ntitle: other\n"), {"case.yaml:1", "second"}},
        Mistake{"long_text_is_clipped",
                with("sweep: {" + std::string(500, 'x') + ": [1]}\n"),
                {"case.yaml:10:9:", "'" + std::string(60, 'x') + "...'"}},
        Mistake{"model_is_a_folder",
                head_with("/tmp", "a800-80g"),
                {"case.yaml:2:1: model: /tmp is a folder"}},
        Mistake{"hardware_is_a_device",
                head_with("llama-2-7b", "/dev/null"),
                {"case.yaml:3:1: hardware: /dev/null is not a regular file"}},
        Mistake{"looked_for_once",
                head_with("/nowhere/m.yaml", "a800-80g"),
                {"does not exist; looked for /nowhere/m.yaml$"}}),
    [](const auto& test) { return std::string(test.param.name); });

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

TEST_F(SpecTest, WhatMayBeWrittenStaysAllowed) {
  EXPECT_EQ(load(with("figure: dlora/fig10\n")).figure, "dlora/fig10");
  EXPECT_EQ(load(titled("\"Zw\xC3\xB6lf $ \xF0\x9F\x98\x80\"")).title,
            "Zw\xC3\xB6lf $ \xF0\x9F\x98\x80");
  EXPECT_EQ(error_of("---\n" + small()), "");
  EXPECT_EQ(load(with("sweep: {engine.max_batch: [1, 10, 100]}\n")).positions.size(), 3u);
  EXPECT_EQ(error_of(workload_with("models: 1")), "");
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
