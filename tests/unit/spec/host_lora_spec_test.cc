// Specs whose techniques plan LoRA on the host: refused before anything runs where a run's first
// plan would be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/core/check.h"
#include "engine/run/point.h"
#include "engine/spec/spec.h"
#include "tests/support/error_of.h"
#include "tests/support/program.h"

namespace servelab {
namespace {

using ::testing::HasSubstr;

class HostLoraSpec : public ::testing::Test {
 protected:
  // Resolves every point of a spec with these first and last lines.
  void resolve(const std::string& head, const std::string& techniques) {
    const Spec spec =
        load_spec(folder_.file("case.yaml", "title: t\n" + head +
                                                "workload:\n  requests: 5\n  adapters: {count: 4}\n"
                                                "  arrivals: {process: poisson, rate: 5}\n" +
                                                techniques),
                  std::string(SERVELAB_SOURCE_DIR) + "/experiments");
    for (const SweepPosition& position : spec.positions) {
      for (const std::size_t i : position.techniques) {
        resolve_point(spec, position, spec.techniques[i], 0);
      }
    }
  }
  std::string error(const std::string& head, const std::string& techniques) {
    return test::error_of([&] { resolve(head, techniques); });
  }
  test::TemporaryFolder folder_;
};

constexpr const char* kTwin = "model: llama-2-7b\nhardware: a800-80g\n";
constexpr const char* kCpu = "model: tiny-15m\nhardware: cpu-uncalibrated\nbackend: cpu\n";

TEST_F(HostLoraSpec, AProfileThatDoesNotSayWhatItCosts) {
  const std::string message = error(kTwin, "techniques: [slora, caraserve]\n");
  EXPECT_THAT(message, HasSubstr("case.yaml:8:21: technique 'caraserve': the hardware profile does "
                                 "not say what LoRA on the host costs"));
  EXPECT_THAT(message, HasSubstr("it needs the section 'host_lora', as a10-24g has"));
  EXPECT_EQ(error("model: llama-2-7b\nhardware: a10-24g\n", "techniques: [caraserve]\n"), "");
  EXPECT_EQ(error(std::string(kTwin) + "backend: null\n", "techniques: [caraserve]\n"), "");
}

TEST_F(HostLoraSpec, OnDemandNeedsNoHost) {
  EXPECT_EQ(error(kTwin, "techniques: [{technique: caraserve, with: {cold: wait}}]\n"), "");
  EXPECT_THAT(error(kTwin,
                    "techniques: [{technique: caraserve, label: mine, "
                    "with: {cold: wait, loading: host}}]\n"),
              HasSubstr("technique 'mine': the hardware profile"));
}

TEST_F(HostLoraSpec, AdaptersOnDisk) {
  EXPECT_EQ(error(kCpu, "techniques: [caraserve]\n"), "");
  EXPECT_THAT(
      error(std::string(kCpu) + "runtime: {adapter_store: disk}\n", "techniques: [caraserve]\n"),
      HasSubstr("case.yaml:10:14: technique 'caraserve': LoRA on the host needs adapters that stay "
                "in host memory: runtime.adapter_store: host"));
}

TEST_F(HostLoraSpec, CachedAdaptersAreNoneOfARealDevices) {
  const std::string cached =
      "techniques: [{technique: caraserve, label: cached, engine: {cached_adapters: true}}]\n";
  EXPECT_EQ(error("model: llama-2-7b\nhardware: a10-24g\n", cached), "");
  EXPECT_THAT(
      error(kCpu, cached),
      HasSubstr(
          "technique 'cached': engine.cached_adapters is an oracle of backends in virtual time"));
}

TEST_F(HostLoraSpec, UnknownSettingsAreToldWithTheKnown) {
  EXPECT_THAT(error(kTwin, "techniques: [{technique: caraserve, with: {host_copy: sync}}]\n"),
              HasSubstr("fused, synced, pageable"));
  EXPECT_THAT(error(kTwin, "techniques: [{technique: caraserve, with: {colt: wait}}]\n"),
              HasSubstr("did you mean 'cold'?"));
}

TEST_F(HostLoraSpec, HowActivationsAreCopiedIsNothingWithoutTheHost) {
  for (const char* setting : {"host_copy: pageable", "take_over: never"}) {
    const std::string with = std::string("{cold: wait, ") + setting + "}";
    EXPECT_THAT(error(kTwin, "techniques: [{technique: caraserve, with: " + with + "}]\n"),
                HasSubstr("case.yaml:8:15: technique 'caraserve': host_copy and take_over are of "
                          "LoRA on the host, and with cold: wait there is none"));
  }
}

TEST_F(HostLoraSpec, LoadPathsThatADeviceCannotTake) {
  const auto with = [this](const char* head, const char* path) {
    return error(std::string(head) + "engine: {load_path: " + path + "}\n",
                 "techniques: [slora]\n");
  };
  EXPECT_THAT(with(kTwin, "pined"), HasSubstr("one of pinned, layers, pageable, rebuild"));
  EXPECT_EQ(with(kTwin, "layers"), "");
  EXPECT_THAT(with("model: llama-2-7b\nhardware: h100-64g\n", "rebuild"),
              HasSubstr("it needs the section 'copies', as a10-24g has"));
  EXPECT_EQ(with("model: llama-2-7b\nhardware: a10-24g\n", "rebuild"), "");
  EXPECT_THAT(with(kCpu, "rebuild"), HasSubstr("engines load from pinned memory"));
  EXPECT_THAT(with(kCpu, "layers"), HasSubstr("this engine's adapters come whole"));
}

}  // namespace
}  // namespace servelab
