#include "engine/core/params.h"

#include <gtest/gtest.h>

namespace servelab {
namespace {

struct Settings {
  int count = 3;
  std::int64_t bytes = 10;
  double rate = 1.5;
  bool fast = false;
  std::string kind = "a";
  std::vector<double> levels = {1, 2};
  std::vector<std::string> names;
  void fields(ParamFields& f) {
    f.add("count", &count, "how many").range(1, 100);
    f.add("bytes", &bytes, "size");
    f.add("rate", &rate, "per second").range(0, 1e6);
    f.add("fast", &fast, "or slow");
    f.add("kind", &kind, "which").one_of({"a", "b"});
    f.add("levels", &levels, "numbers").range(0, 10);
    f.add("names", &names, "texts");
  }
};

Settings bound(const std::string& yaml) {
  Settings s;
  bind_params(parse_yaml(yaml, "spec.yaml"), "section 'test'", &s);
  return s;
}

std::string message(const std::string& yaml) {
  try {
    bound(yaml);
  } catch (const SpecError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Params, BindsEveryTypeAndKeepsDefaults) {
  const Settings s =
      bound("count: 7\nrate: 2e3\nfast: true\nkind: b\nlevels: [0.5, 1]\nnames: x\n");
  EXPECT_EQ(s.count, 7);
  EXPECT_EQ(s.bytes, 10);
  EXPECT_EQ(s.rate, 2000);
  EXPECT_TRUE(s.fast);
  EXPECT_EQ(s.kind, "b");
  EXPECT_EQ(s.levels, (std::vector<double>{0.5, 1}));
  EXPECT_EQ(s.names, (std::vector<std::string>{"x"}));
  EXPECT_EQ(bound("bytes: 1e9\ncount: 1_0").bytes, 1'000'000'000);
  EXPECT_EQ(bound("").count, 3);
}

TEST(Params, EffectiveSettingsReadBackToTheSameValues) {
  Settings s = bound("rate: 0.1\nnames: [p, q]\n");
  const ConfigNode effective = effective_params(&s);
  Settings again;
  bind_params(effective, "x", &again);
  EXPECT_EQ(canonical_json(effective_params(&again)), canonical_json(effective));
  EXPECT_EQ(again.rate, 0.1);
}

TEST(Params, ErrorsNameThePlaceTheKeyAndTheRemedy) {
  EXPECT_EQ(message("\n  cuont: 3"),
            "spec.yaml:2:3: unknown key 'cuont' in section 'test'; did you mean 'count'? known: "
            "count, bytes, rate, fast, kind, levels, names");
  EXPECT_EQ(message("rate: -1"),
            "spec.yaml:1:1: 'rate' must be a number, >= 0 and <= 1e+06; got '-1'");
  EXPECT_EQ(message("count: many"),
            "spec.yaml:1:1: 'count' must be a whole number, >= 1 and <= 100; got 'many'");
  EXPECT_EQ(message("count: 1.5").substr(0, 24), "spec.yaml:1:1: 'count' m");
  EXPECT_EQ(message("count: 3000000000").substr(0, 14), "spec.yaml:1:1:");
  EXPECT_NE(message("kind: c").find("one of a, b"), std::string::npos);
  EXPECT_NE(message("rate: nan").find("must be a number"), std::string::npos);
  EXPECT_NE(message("rate: {a: 1}").find("got a map"), std::string::npos);
  EXPECT_NE(message("count: '5'").find("must be a whole number"), std::string::npos);
  EXPECT_NE(message("[1, 2]").find("must be a map"), std::string::npos);
  EXPECT_NE(message("count: 1\ncount: 2").find("spec.yaml:2:1: key 'count' is given twice"),
            std::string::npos);
  EXPECT_NE(message("count: [").find("spec.yaml:"), std::string::npos);
}

TEST(ConfigNode, CanonicalJsonIgnoresOrderAndSpacing) {
  EXPECT_EQ(canonical_json(parse_yaml("b: 1\na: [x, 2.5, true, '3', null]", "t")),
            canonical_json(parse_yaml("{a: [x,   2.5, true, \"3\", ~], b: 1}", "t")));
  EXPECT_EQ(canonical_json(parse_yaml("a: \"say \\\"hi\\\"\"", "t")), "{\"a\":\"say \\\"hi\\\"\"}");
  EXPECT_EQ(canonical_json(parse_yaml("a: 007", "t")), "{\"a\":\"007\"}") << "not a JSON number";
}

TEST(ConfigNode, SetPathMakesMapsOnTheWay) {
  ConfigNode node = parse_yaml("a: {b: 1}", "t");
  node.set_path("a.c.d", ConfigNode::of("x"));
  EXPECT_EQ(canonical_json(node), "{\"a\":{\"b\":1,\"c\":{\"d\":\"x\"}}}");
  EXPECT_THROW(node.set_path("a.b.z", ConfigNode::of("x")), SpecError);
}

TEST(Suggest, NamesTheNearestOnlyWhenItIsNear) {
  EXPECT_EQ(suggest("slorra", {"dlora", "slora"}), "did you mean 'slora'? known: dlora, slora");
  EXPECT_EQ(suggest("zzzzzzzz", {"dlora"}), "known: dlora");
}

// A file's name is gone once it is read, with every other field at hand.
TEST(Params, AFieldThatNamesAFileIsReadLastAndLeavesNoName) {
  struct FromFile {
    std::string file;
    int scale = 1;
    std::string read;
    void fields(ParamFields& f) {
      f.add("file", &file, "which").file("kind", [this](const ConfigNode& name) {
        read = name.scalar + " x " + std::to_string(scale);
      });
      f.add("scale", &scale, "how much");
    }
  } s;
  bind_params(parse_yaml("file: a.yaml\nscale: 3\n", "spec.yaml"), "x", &s);
  EXPECT_EQ(s.read, "a.yaml x 3");
  EXPECT_EQ(canonical_json(effective_params(&s)), R"({"file":"","scale":3})");
  s.read.clear();
  bind_params(effective_params(&s), "x", &s);
  EXPECT_EQ(s.read, "") << "effective settings name no file";
}

}  // namespace
}  // namespace servelab
