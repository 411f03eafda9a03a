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

}  // namespace
}  // namespace servelab
