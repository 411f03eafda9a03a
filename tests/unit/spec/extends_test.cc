// `extends:` at the top of a spec: what a variant inherits, where its mistakes are told to be, and
// that the text kept of it says the same by itself.
#include "engine/spec/extends.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "engine/core/yaml_writer.h"
#include "engine/run/point.h"
#include "engine/run/spec_check.h"
#include "engine/spec/spec.h"
#include "tests/support/program.h"

namespace servelab {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::string kExperiments = SERVELAB_SOURCE_DIR "/experiments";

constexpr const char* kParent =
    "title: The parent\n"                                  // 1
    "description: of the parent\n"                         // 2
    "model: llama-2-7b\n"                                  // 3
    "hardware: a800-80g\n"                                 // 4
    "engine: {max_batch: 16, max_batch_tokens: 2048}\n"    // 5
    "cluster: {replicas: 2}\n"                             // 6
    "workload:\n"                                          // 7
    "  requests: 20\n"                                     // 8
    "  adapters: {count: 4, ranks: [8, 16]}\n"             // 9
    "  arrivals: {process: poisson, rate: 5}\n"            // 10
    "  lengths: {source: fixed, prompt: 16, output: 4}\n"  // 11
    "sweep: {workload.arrivals.rate: [1, 2, 3]}\n"         // 12
    "techniques: [slora, {technique: dlora, label: d}]\n"  // 13
    "seeds: [3, 5]\n"                                      // 14
    "expect: [dlora/fig10-merged-mean]\n"                  // 15
    "quick: {sweep: {workload.arrivals.rate: [1]}}\n";     // 16

// All that a spec resolves to, but for its id and how it is drawn.
std::string content_of(const Spec& spec) {
  std::string text;
  for (const std::int64_t seed : spec.seeds) text += std::to_string(seed) + " ";
  for (const std::string& path : spec.swept) text += path + " ";
  for (const TechniqueEntry& entry : spec.techniques) {
    text += "\n" + entry.technique + " " + entry.label + " " + entry.route;
    for (const ConfigNode* node : {&entry.route_params, &entry.params, &entry.engine}) {
      text += " " + canonical_json(*node);
    }
  }
  for (const SweepPosition& position : spec.positions) {
    text +=
        "\n" + position.text() + canonical_json(position.settings) + canonical_json(position.with);
    for (const std::size_t technique : position.techniques) text += " " + std::to_string(technique);
  }
  return text;
}

std::string first_key(const Spec& spec) {
  const SweepPosition& position = spec.positions.front();
  const PointSettings point = resolve_point(
      spec, position, spec.techniques[position.techniques.front()], spec.seeds.front());
  const BuiltWorkload workload = build_point_workload(point, "");
  return point_key(effective_settings(point, workload), workload);
}

class ExtendsTest : public ::testing::Test {
 protected:
  // Specs in p/ of an experiments folder whose shared files are ours.
  ExtendsTest() {
    fs::create_directory_symlink(kExperiments + "/base", folder_ / "base");
    fs::copy(kExperiments + "/claims.yaml", folder_ / "claims.yaml");
    for (const char* paper : {"p", "q"}) fs::create_directory(folder_ / paper);
    file("p/fig01.yaml", kParent);
  }
  std::string file(const std::string& name, const std::string& text) const {
    return folder_.file(name, text);
  }
  Spec load(const std::string& text, const std::string& name = "p/case.yaml",
            SpecForm form = SpecForm::kFull) const {
    return load_spec(file(name, text), folder_.path(), form);
  }
  // Of a variant of p/fig01.
  Spec variant(const std::string& text) const { return load("extends: fig01\ntitle: t\n" + text); }
  ConfigNode setting(const Spec& spec, const std::string& section, const std::string& key) const {
    const ConfigNode* value = spec.positions.front().settings.find(section)->find(key);
    return value == nullptr ? ConfigNode() : *value;
  }
  // The error without the folder; "" when the spec is right.
  std::string error_of(const std::string& text) const {
    try {
      check_spec(load(text), "", false);
      return "";
    } catch (const SpecError& error) {
      std::string what = error.what();
      EXPECT_EQ(what.find('\n'), std::string::npos) << what;
      for (std::size_t at; (at = what.find(folder_.path() + "/")) != std::string::npos;) {
        what.erase(at, folder_.path().size() + 1);
      }
      return what;
    }
  }
  std::string variant_error(const std::string& text) const {
    return error_of("extends: fig01\ntitle: t\n" + text);
  }

  test::TemporaryFolder folder_;
};

TEST_F(ExtendsTest, VariantIsWhatItExtendsWithItsOwnOnTop) {
  const Spec parent = load_spec(folder_ / "p/fig01.yaml", folder_.path());
  EXPECT_EQ(content_of(variant("")), content_of(parent));
  const Spec spec = variant("hardware: h100-80g\nengine: {max_batch: 8}\nrecord: {steps: true}\n");
  EXPECT_EQ(spec.title, "t");
  EXPECT_EQ(spec.positions.front().settings.find("hardware")->scalar, "h100-80g");
  EXPECT_EQ(spec.positions.front().settings.find("model")->scalar, "llama-2-7b");
  EXPECT_EQ(setting(spec, "engine", "max_batch").scalar, "8");
  EXPECT_EQ(setting(spec, "engine", "max_batch_tokens").scalar, "2048");
  EXPECT_EQ(setting(spec, "record", "steps").scalar, "true");
  EXPECT_EQ(spec.positions.size(), 3u);
  EXPECT_THAT(spec.seeds, ElementsAre(3, 5));
}

TEST_F(ExtendsTest, ListsAndTheSweepAreReplacedAsAWhole) {
  const Spec spec = variant(
      "workload: {adapters: {ranks: [32]}}\nsweep: {engine.max_batch: [4, 8]}\n"
      "techniques: [punica]\nseeds: 1\n");
  EXPECT_THAT(spec.swept, ElementsAre("engine.max_batch"));
  EXPECT_EQ(canonical_json(*setting(spec, "workload", "adapters").find("ranks")), "[32]");
  EXPECT_EQ(setting(spec, "workload", "adapters").find("count")->scalar, "4");
  EXPECT_THAT(spec.seeds, ElementsAre(0));
  ASSERT_EQ(spec.techniques.size(), 1u);
  EXPECT_EQ(spec.techniques.front().technique, "punica");
}

TEST_F(ExtendsTest, WorkloadMapGoesOverANameAndANameReplaces) {
  const std::string named = "extends: fig01\ntitle: t\nsweep: null\nworkload: dlora-maf2\n";
  file("p/named.yaml", named);
  const Spec replaced = load(named);
  EXPECT_EQ(setting(replaced, "workload", "requests").scalar, "400");
  EXPECT_EQ(setting(replaced, "workload", "lengths").find("prompt"), nullptr);
  const Spec changed = load("extends: named\ntitle: t\nworkload: {arrivals: {rate: 7}}\n");
  EXPECT_EQ(content_of(changed),
            content_of(load("extends: fig01\ntitle: t\nsweep: null\n"
                            "workload: {extends: dlora-maf2, arrivals: {rate: 7}}\n")));
  EXPECT_EQ(setting(changed, "workload", "arrivals").find("trace")->scalar, "maf2");
  // Over a map that extends a name, too; and what extends a name of its own replaces it.
  file("p/changed.yaml", "extends: named\ntitle: t\nworkload: {arrivals: {rate: 7}}\n");
  const Spec twice = load("extends: changed\ntitle: t\nworkload: {requests: 9}\n");
  EXPECT_EQ(setting(twice, "workload", "requests").scalar, "9");
  EXPECT_EQ(setting(twice, "workload", "arrivals").find("rate")->scalar, "7");
  const Spec other = load("extends: changed\ntitle: t\nworkload: {extends: dlora-maf2-cluster}\n");
  EXPECT_EQ(setting(other, "workload", "arrivals").find("rate")->scalar, "32");
  EXPECT_TRUE(setting(other, "workload", "requests").is_null());
}

TEST_F(ExtendsTest, NullDropsWhatIsInherited) {
  const Spec spec = variant(
      "engine: null\ncluster: {replicas: null}\nsweep: null\nseeds: null\n"
      "workload: {adapters: {ranks: null}}\n");
  EXPECT_EQ(spec.positions.front().settings.find("engine"), nullptr);
  EXPECT_TRUE(setting(spec, "cluster", "replicas").is_null());
  EXPECT_EQ(setting(spec, "workload", "adapters").find("ranks"), nullptr);
  EXPECT_EQ(spec.positions.size(), 1u);
  EXPECT_THAT(spec.seeds, ElementsAre(0));
  const Spec named = variant("workload: {extends: dlora-maf2, popularity: null}\nsweep: null\n");
  EXPECT_TRUE(setting(named, "workload", "popularity").is_null());
  // As a backend it is a name.
  const Spec null_backend = variant("backend: null\ntechniques: [null]\n");
  EXPECT_EQ(null_backend.positions.front().settings.find("backend")->scalar, "null");
  EXPECT_EQ(null_backend.techniques.front().technique, "null");
  EXPECT_EQ(content_of(parse_spec(null_backend.yaml, null_backend.path, null_backend.library)),
            content_of(null_backend));
}

TEST_F(ExtendsTest, SomeThingsAreNotInherited) {
  const WholeSpec whole = read_whole_spec("extends: fig01\ntitle: t\n", folder_ / "p/case.yaml",
                                          Library(folder_.path()));
  for (const char* key : {"extends", "description", "expect", "quick"}) {
    EXPECT_EQ(whole.root.find(key), nullptr) << key;
  }
  EXPECT_FALSE(variant("").has_quick);
  const Spec quick =
      load("extends: fig01\ntitle: t\nquick: {seeds: [9]}\n", "p/case.yaml", SpecForm::kQuick);
  EXPECT_THAT(quick.seeds, ElementsAre(9));
  EXPECT_EQ(quick.positions.size(), 3u);
  EXPECT_EQ(error_of("extends: fig01\n"),
            "p/case.yaml:1:1: the spec needs 'title' (what the figure shows, in one line)");
}

TEST_F(ExtendsTest, VariantIsDrawnAsWhatItExtends) {
  EXPECT_EQ(variant("").figure, "p/fig01");
  EXPECT_EQ(variant("figure: p/other\n").figure, "p/other");
  EXPECT_EQ(variant("figure: null\n").figure, "case");
  file("p/drawn.yaml", "extends: fig01\ntitle: t\nfigure: p/other\n");
  EXPECT_EQ(load("extends: drawn\ntitle: t\n").figure, "p/other");
  file("p/own.yaml", "extends: fig01\ntitle: t\nfigure: null\n");
  EXPECT_EQ(load("extends: own\ntitle: t\n").figure, "p/own");
  EXPECT_EQ(load("extends: p/fig01\ntitle: t\n", "mine.yaml").figure, "p/fig01");
  file("top.yaml", kParent);
  EXPECT_EQ(load("extends: top\ntitle: t\n", "mine.yaml").figure, "mine") << "top is no figure";
}

TEST_F(ExtendsTest, NamesAreOfFilesBesideItAndOfIds) {
  const std::string parent = content_of(load_spec(folder_ / "p/fig01.yaml", folder_.path()));
  for (const std::string& name : std::vector<std::string>{
           "fig01", "./fig01", "fig01.yaml", "p/fig01", "../p/fig01.yaml", folder_ / "p/fig01"}) {
    EXPECT_EQ(content_of(load("extends: " + name + "\ntitle: t\n")), parent) << name;
  }
  EXPECT_EQ(content_of(load("extends: p/fig01\ntitle: t\n", "q/case.yaml")), parent);
  const Spec spec = variant("");
  ASSERT_EQ(spec.library.found().size(), 1u);
  EXPECT_EQ(spec.library.found().front().kind, "spec");
  EXPECT_EQ(spec.library.found().front().name, "fig01");
}

TEST_F(ExtendsTest, FilesBesideWhatItExtendsAreFoundFromElsewhere) {
  fs::copy(kExperiments + "/base/model/tiny-15m.yaml", folder_ / "p/small.yaml");
  file("p/load.yaml",
       "requests: 3\nadapters: {count: 2, ranks: [8]}\n"
       "arrivals: {process: closed}\nlengths: {source: fixed, prompt: 8, output: 2}\n");
  file("p/fig02.yaml",
       "title: t\nmodel: ./small.yaml\nhardware: a800-80g\nworkload: {extends: load.yaml}\n"
       "techniques: [slora]\nsweep: {model: [small.yaml, llama-2-7b]}\n");
  const Spec spec = load("extends: p/fig02\ntitle: t\n", "q/case.yaml");
  EXPECT_EQ(spec.positions.front().settings.find("model")->scalar, folder_ / "p/small.yaml");
  check_spec(spec, "", false);
  check_spec(parse_spec(spec.yaml, "/elsewhere/case.yaml", spec.library), "", false);
  EXPECT_THAT(load("extends: fig02\ntitle: t\n").yaml, HasSubstr("model: ./small.yaml\n"));
}

TEST_F(ExtendsTest, MistakesAreToldWhereTheyStand) {
  file("p/bad.yaml", std::string(kParent) + "engin: {max_batch: 3}\n");
  EXPECT_THAT(error_of("extends: bad\ntitle: t\n"),
              StartsWith("p/bad.yaml:17:1: unknown key 'engin'"));
  file("p/bad.yaml", std::string(kParent) + "runtime: {threads: many}\n");
  EXPECT_THAT(error_of("extends: bad\ntitle: t\nruntime: {pin: false}\n"),
              StartsWith("p/bad.yaml:17:11: 'threads' must be a whole number"));
  EXPECT_EQ(error_of("extends: bad\ntitle: t\nruntime: {threads: 1}\n"), "");
  EXPECT_THAT(variant_error("engine:\n  max_batch: 3.5\n"),
              StartsWith("p/case.yaml:4:3: 'max_batch' must be a whole number"));
  EXPECT_THAT(variant_error("workload: {arrivals: {rat: 3}}\n"),
              StartsWith("p/case.yaml:3:23: unknown key 'rat'"));
  EXPECT_THAT(variant_error("sweep: {zip: 3}\n"), StartsWith("p/case.yaml:3:9: 'zip' must be"));
  file("p/torn.yaml", "title: [\n");
  EXPECT_THAT(error_of("extends: torn\ntitle: t\n"),
              AllOf(StartsWith("p/torn.yaml:"), HasSubstr("not valid YAML")));
  file("p/list.yaml", "- a\n");
  EXPECT_EQ(error_of("extends: list\ntitle: t\n"),
            "p/list.yaml:1:1: a spec must be a map of settings");
  for (const char* unclosed :
       {"title: \"t\nextends: fig01\n", "title: \"t\nextends: fig01\nx: \"\n"}) {
    EXPECT_THAT(error_of(unclosed),
                StartsWith("p/case.yaml:1:1: 'title' runs on over the lines after it"));
  }
  EXPECT_EQ(load("extends: fig01\ntitle: \"What model: extends: mean\"\n").title,
            "What model: extends: mean");
}

TEST_F(ExtendsTest, NamesThatAreNoneAreToldWithTheNearest) {
  EXPECT_THAT(error_of("extends: fig1\ntitle: t\n"),
              StartsWith("p/case.yaml:1:1: no spec 'fig1' beside this file or in "));
  EXPECT_THAT(error_of("extends: fig1\ntitle: t\n"), HasSubstr("; did you mean 'fig01'?"));
  EXPECT_THAT(error_of("extends: p/fig1\ntitle: t\n"), HasSubstr("; did you mean 'p/fig01'?"));
  for (const char* none : {"[fig01]", "{a: b}", "null", "\"\"", ""}) {
    EXPECT_THAT(error_of("extends: " + std::string(none) + "\ntitle: t\n"),
                StartsWith("p/case.yaml:1:1: 'extends' must be one name"))
        << none;
  }
  EXPECT_THAT(error_of("extend: fig01\ntitle: t\n"), HasSubstr("did you mean 'extends'?"));
}

TEST_F(ExtendsTest, NullThatDropsNothingIsAMistake) {
  EXPECT_THAT(variant_error("engin: null\n"),
              AllOf(StartsWith("p/case.yaml:3:1: 'engin' is null, which drops what is inherited"),
                    HasSubstr("did you mean 'engine'?")));
  EXPECT_THAT(variant_error("engine: {max_bach: null}\n"),
              AllOf(StartsWith("p/case.yaml:3:10: 'max_bach' is null"),
                    HasSubstr("did you mean 'max_batch'?")));
  EXPECT_THAT(variant_error("expect: null\n"), HasSubstr("nothing is inherited by that name"));
  EXPECT_EQ(variant_error("engine:\n"),
            "p/case.yaml:3:1: 'engine' has no value; null drops what is inherited");
}

TEST_F(ExtendsTest, CirclesAndLongWaysAreRefused) {
  EXPECT_EQ(error_of("extends: case\ntitle: t\n"),
            "p/case.yaml:1:1: 'extends' goes round in a circle: 'p/case' -> 'p/case'");
  file("p/one.yaml", "extends: ../q/two\ntitle: t\n");
  file("q/two.yaml", "extends: p/one\ntitle: t\n");
  EXPECT_EQ(error_of("extends: one\ntitle: t\n"),
            "q/two.yaml:1:1: 'extends' goes round in a circle: 'p/case' -> 'p/one' -> 'q/two' -> "
            "'p/one'");
  file("p/v1.yaml", "extends: fig01\ntitle: t\nengine: {max_batch: 1}\n");
  for (int i = 2; i <= 8; ++i) {
    const std::string n = std::to_string(i);
    file("p/v" + n + ".yaml",
         "extends: v" + std::to_string(i - 1) + "\ntitle: t\nengine: {max_batch: " + n + "}\n");
  }
  EXPECT_EQ(setting(load("extends: v7\ntitle: t\n"), "engine", "max_batch").scalar, "7");
  EXPECT_THAT(
      error_of("extends: v8\ntitle: t\n"),
      StartsWith("p/v1.yaml:1:1: 'extends' leads over more than eight specs: 'p/case' -> "));
}

TEST_F(ExtendsTest, TextKeptOfAVariantStandsByItself) {
  EXPECT_EQ(load(kParent).yaml, kParent) << "as written where nothing is extended";
  const Spec spec = variant("workload: {requests: 30}\n");
  EXPECT_THAT(spec.yaml, StartsWith("# 'p/case' over what it extends: 'p/fig01'\ntitle: t\n"));
  EXPECT_THAT(spec.yaml, Not(HasSubstr("\nextends:")));
  EXPECT_THAT(spec.yaml, HasSubstr("\nengine: {max_batch: 16, max_batch_tokens: 2048}\n"));
  const Spec again = parse_spec(spec.yaml, spec.path, spec.library);
  EXPECT_EQ(content_of(again), content_of(spec));
  EXPECT_EQ(again.figure, spec.figure);
  EXPECT_EQ(again.yaml, spec.yaml);
  EXPECT_EQ(first_key(again), first_key(spec));
}

// Every spec of the tree: the text kept of it, and its tree written anew, mean the same.
TEST(ExtendsOfTheTree, EverySpecStandsByItself) {
  const Library library(kExperiments);
  std::size_t variants = 0;
  for (const std::string& id : library.spec_ids()) {
    SCOPED_TRACE(id);
    const std::string path = library.find_spec(id);
    const Spec full = load_spec(path, kExperiments);
    variants += full.yaml != test::read_file(path) ? 1 : 0;
    const std::string written = write_yaml(read_whole_spec(full.yaml, path, library).root);
    for (const SpecForm form : {SpecForm::kFull, SpecForm::kQuick}) {
      if (form == SpecForm::kQuick && !full.has_quick) break;
      const Spec spec = load_spec(path, kExperiments, form);
      for (const std::string& text : {spec.yaml, written}) {
        const Spec again = parse_spec(text, path, library, form);
        EXPECT_EQ(content_of(again), content_of(spec));
        EXPECT_EQ(again.title, spec.title);
        EXPECT_EQ(again.figure, spec.figure);
        EXPECT_EQ(first_key(again), first_key(spec));
      }
    }
  }
  EXPECT_GE(variants, 20u);
}

}  // namespace
}  // namespace servelab
