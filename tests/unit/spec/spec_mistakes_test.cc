// What every mistake in a spec is answered with: file, line, column and the nearest valid name.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "tests/unit/spec/spec_testing.h"

namespace servelab {
namespace {

using ::testing::HasSubstr;
using namespace test;  // NOLINT: the tests' own words

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

TEST_F(SpecTest, WhatMayBeWrittenStaysAllowed) {
  EXPECT_EQ(load(with("figure: dlora/fig10\n")).figure, "dlora/fig10");
  EXPECT_EQ(load(titled("\"Zw\xC3\xB6lf $ \xF0\x9F\x98\x80\"")).title,
            "Zw\xC3\xB6lf $ \xF0\x9F\x98\x80");
  EXPECT_EQ(error_of("---\n" + small()), "");
  EXPECT_EQ(load(with("sweep: {engine.max_batch: [1, 10, 100]}\n")).positions.size(), 3u);
  EXPECT_EQ(error_of(workload_with("models: 1")), "");
}

}  // namespace
}  // namespace servelab
