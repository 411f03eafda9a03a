// A tree written as YAML is read as the same tree, and looks as a person would write it.
#include "engine/core/yaml_writer.h"

#include <gtest/gtest.h>

#include <string>

namespace servelab {
namespace {

void expect_same(const ConfigNode& tree) {
  const std::string text = write_yaml(tree);
  EXPECT_EQ(canonical_json(parse_yaml(text, "written")), canonical_json(tree)) << text;
  EXPECT_EQ(write_yaml(parse_yaml(text, "written")), text);
}

TEST(YamlWriterTest, LooksAsAPersonWouldWriteIt) {
  const std::string text =
      "title: \"A title: of \\\"two\\\" parts\"\n"
      "model: llama-2-7b\n"
      "engine: {max_batch: 16, memory_fraction: 0.9}\n"
      "workload:\n"
      "  requests: 20\n"
      "  adapters: {count: 4, ranks: [8, 16]}\n"
      "sweep:\n"
      "  - {techniques: [a], engine.max_batch: [1, 2]}\n"
      "  - techniques: [b]\n"
      "    zip:\n"
      "      - {engine.max_batch: 1, workload.adapters.ranks: [[8], [16]]}\n"
      "      - {engine.max_batch: 2}\n"
      "techniques:\n"
      "  - slora\n"
      "  - {technique: dlora, label: \"8\", with: {alpha: 0.5}}\n"
      "seeds: [1, 2]\n"
      "quick: {}\n"
      "expect: []\n"
      "figure: null\n";
  EXPECT_EQ(write_yaml(parse_yaml(text, "t")), text);
}

TEST(YamlWriterTest, BreaksWhatIsLongerThanALine) {
  ConfigNode list = ConfigNode::list();
  for (int i = 0; i < 30; ++i) list.items.push_back(ConfigNode::of("value", false));
  ConfigNode tree = ConfigNode::map();
  tree.set("values", list);
  EXPECT_EQ(write_yaml(tree).substr(0, 26), "values:\n  - value\n  - valu");
  expect_same(tree);
}

TEST(YamlWriterTest, TextStaysTextAndNumbersNumbers) {
  for (const std::string text :
       {"",       "8",    "-1",   "1e0",  "0x1f",         "true",
        "no",     "null", "~",    "a: b", "#x",           "- x",
        "a, b",   "[x",   "{x",   "*x",   "&x",           "!x",
        "%x",     "@x",   "'",    "\"",   "\\",           " x ",
        "a\nb\n", "\t",   "\x01", "x:",   "Zw\xC3\xB6lf", "\xF0\x9F\x98\x80",
        "?",      "a #b", "---"}) {
    SCOPED_TRACE(text);
    ConfigNode items = ConfigNode::list();
    items.items = {ConfigNode::of(text), ConfigNode::of("1")};
    ConfigNode tree = ConfigNode::map();
    tree.set("block", ConfigNode::of(text));
    tree.set("line", items);
    if (!text.empty()) tree.set(text, ConfigNode::of("a key"));
    expect_same(tree);
    EXPECT_TRUE(parse_yaml(write_yaml(tree), "t").find("block")->quoted);
  }
  for (const std::string text : {"8", "-1.5", "1e0", "1_000", "+3", "true", "false", ".5"}) {
    ConfigNode tree = ConfigNode::map();
    tree.set("value", ConfigNode::of(text, false));
    EXPECT_EQ(write_yaml(tree), "value: " + text + "\n");
  }
}

TEST(YamlWriterTest, WhatIsNestedComesBack) {
  for (const std::string text :
       {"{}", "[]", "x", "a: {b: {c: {d: [1, [2, [3, {e: f}]]]}}}", "a: [[{b: 1}], [], {}]",
        "[a, {b: [c, {d: e}]}, [f]]", "a: {b: null, c: ~}", "? long key of several words\n: 1"}) {
    SCOPED_TRACE(text);
    expect_same(parse_yaml(text, "t"));
  }
}

}  // namespace
}  // namespace servelab
