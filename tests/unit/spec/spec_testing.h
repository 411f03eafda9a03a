// A small spec, and what loading, checking and resolving it says.
#ifndef SERVELAB_TESTS_UNIT_SPEC_SPEC_TESTING_H_
#define SERVELAB_TESTS_UNIT_SPEC_SPEC_TESTING_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/run/point.h"
#include "engine/run/spec_check.h"
#include "engine/spec/spec.h"
#include "tests/support/program.h"

namespace servelab::test {

inline constexpr const char* kExperiments = SERVELAB_SOURCE_DIR "/experiments";

inline constexpr const char* kHead =
    "title: test\n"          // 1
    "model: llama-2-7b\n"    // 2
    "hardware: a800-80g\n";  // 3
inline constexpr const char* kWorkload =
    "workload:\n"                                              // 4
    "  requests: 20\n"                                         // 5
    "  adapters: {count: 4, ranks: [8]}\n"                     // 6
    "  arrivals: {process: poisson, rate: 5}\n"                // 7
    "  lengths: {source: fixed, prompt: 16, output: 4}\n";     // 8
inline constexpr const char* kTail = "techniques: [slora]\n";  // 9

inline std::string small() { return std::string(kHead) + kWorkload + kTail; }

inline std::string repeated(const std::string& text, int times) {
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

}  // namespace servelab::test

#endif  // SERVELAB_TESTS_UNIT_SPEC_SPEC_TESTING_H_
