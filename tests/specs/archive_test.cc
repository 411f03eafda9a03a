// Whole runs into archives and back, by the program. tests/analysis has what archives must refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/program.h"

namespace servelab {
namespace {

namespace fs = std::filesystem;
using test::ProgramResult;
using test::run_program;
using ::testing::HasSubstr;

class ArchiveRun : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(std::string(SERVELAB_SOURCE_DIR) + "/.venv/bin/python")) {
      GTEST_SKIP() << "no .venv: .ci/setup --only-python makes it";
    }
  }
  void run(const std::string& spec, const std::string& out) const {
    const ProgramResult ran = run_program({"run", spec, "--out", folder_ / out, "-q"});
    ASSERT_EQ(ran.code, 0) << ran.err;
  }
  ProgramResult pack(const std::vector<std::string>& ids, const std::string& results,
                     const std::string& archive, long file_limit_bytes = 0) const {
    std::vector<std::string> command = {"archive", "pack"};
    command.insert(command.end(), ids.begin(), ids.end());
    for (const std::string& more :
         {std::string("--results"), folder_ / results, std::string("--out"), folder_ / archive}) {
      command.push_back(more);
    }
    return run_program(command, file_limit_bytes);
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      found.push_back(entry.path().filename());
    }
    return found;
  }

  test::TemporaryFolder folder_;
};

TEST_F(ArchiveRun, RunsArePackedVerifiedUnpackedAndTheSame) {
  run("smoke/dlora", "results");
  run("smoke/slora", "results");
  for (const char* name : {"a.tar.zst", "b.tar.zst"}) {
    const ProgramResult packed = pack({"smoke/dlora", "smoke/slora"}, "results", name);
    ASSERT_EQ(packed.code, 0) << packed.err;
  }
  const std::string archive = folder_ / "a.tar.zst";
  EXPECT_EQ(test::read_file(archive), test::read_file(folder_ / "b.tar.zst"));

  fs::rename(folder_ / "results", folder_ / "hidden");
  const ProgramResult verified = run_program({"archive", "verify", archive});
  EXPECT_EQ(verified.code, 0) << verified.err;
  EXPECT_THAT(verified.out, HasSubstr("smoke/dlora: drawn again, the same bytes: dlora.pdf"));
  EXPECT_THAT(verified.out, HasSubstr("smoke/slora: drawn again, the same bytes: slora.pdf"));

  const ProgramResult unpacked =
      run_program({"archive", "unpack", archive, "--out", folder_ / "unpacked"});
  ASSERT_EQ(unpacked.code, 0) << unpacked.err;
  const auto digests = test::digests(folder_ / "unpacked");
  EXPECT_EQ(digests, test::digests(folder_ / "hidden"));
  EXPECT_EQ(digests.size(), 14u);
  EXPECT_EQ(test::read_file(folder_ / "unpacked/specs/smoke/dlora.yaml"),
            test::read_file(std::string(SERVELAB_SOURCE_DIR) + "/experiments/smoke/dlora.yaml"));

  const ProgramResult diff = run_program({"archive", "diff", archive, folder_ / "unpacked"});
  EXPECT_EQ(diff.code, 0) << diff.out << diff.err;
  EXPECT_THAT(diff.out, HasSubstr("smoke/dlora: 12 points in both, same build id "));
  EXPECT_THAT(diff.out, HasSubstr("0 metrics moved beyond noise, 0 within it"));
}

TEST_F(ArchiveRun, AChangedSettingIsNamedWithWhatItMoved) {
  constexpr const char* kSpec =
      "title: test\nmodel: llama-2-7b\nhardware: a800-80g\n"
      "workload:\n"
      "  requests: 200\n"
      "  adapters: {count: 8, ranks: [8]}\n"
      "  arrivals: {process: poisson, rate: 10}\n"
      "  lengths: {source: lognormal, prompt: 60, output: 30}\n"
      "techniques: [slora]\nseeds: 5\nengine: {max_batch: ";
  for (const char* batch : {"32", "2"}) {
    run(folder_.file("batch.yaml", std::string(kSpec) + batch + "}\n"), batch);
    const ProgramResult packed = pack({"batch"}, batch, std::string(batch) + ".tar.zst");
    ASSERT_EQ(packed.code, 0) << packed.err;
  }
  const ProgramResult diff =
      run_program({"archive", "diff", folder_ / "32.tar.zst", folder_ / "2.tar.zst"});
  EXPECT_EQ(diff.code, 1) << diff.err;
  EXPECT_THAT(diff.out, HasSubstr("setting  engine.max_batch 32 -> 2 (5 points)"));
  EXPECT_THAT(diff.out, HasSubstr("moved    latency_per_token_mean_s of slora: "));
}

TEST_F(ArchiveRun, AFullDiskLeavesNothing) {
  run("smoke/slora", "results");
  const auto before = names();
  const ProgramResult packed = pack({"smoke/slora"}, "results", "a.tar.zst", 30'000);
  EXPECT_EQ(packed.code, 1);
  EXPECT_THAT(packed.err, HasSubstr("File too large"));
  EXPECT_EQ(std::count(packed.err.begin(), packed.err.end(), '\n'), 1) << packed.err;
  EXPECT_EQ(names(), before);
}

TEST_F(ArchiveRun, MistakesAreOneLine) {
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"archive"},
           {"archive", "list"},
           {"archive", "pak", "x"},
           {"archive", "verify", folder_ / "absent"},
           {"archive", "pack", "smoke/absent", "--out", folder_ / "x"},
           {"archive", "diff", "x"}}) {
    const ProgramResult result = run_program(command);
    EXPECT_EQ(result.code, 2) << command.back();
    EXPECT_EQ(result.err.rfind("servelab: error: ", 0), 0u) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

}  // namespace
}  // namespace servelab
