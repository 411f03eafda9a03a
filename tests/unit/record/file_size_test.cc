// Points of many requests: what the writer compresses itself comes back through HDF5's own filters,
// and a request takes few bytes.
#include <gtest/gtest.h>

#include "engine/core/rng.h"
#include "engine/record/atomic_file.h"
#include "engine/record/hdf5_reader.h"
#include "engine/record/hdf5_writer.h"
#include "engine/record/point_file.h"
#include "engine/run/point.h"
#include "tests/support/program.h"

namespace servelab {
namespace {

// Noise, runs and slow growth by turns.
template <class T>
std::vector<T> mixed(std::size_t count) {
  RngStream rng(1, "numbers");
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t kind = i / 1000 % 3;
    values[i] = kind == 0   ? static_cast<T>(rng.next())
                : kind == 1 ? static_cast<T>(-1)
                            : static_cast<T>(i);
  }
  return values;
}

template <class T>
void expect_back(std::size_t count) {
  SCOPED_TRACE(std::to_string(count) + " entries of " + std::to_string(sizeof(T)) + " bytes");
  const test::TemporaryFolder folder;
  const std::vector<T> values = mixed<T>(count);
  Hdf5Writer out("a.h5");
  out.dataset<T>("/a", values, {"1", "numbers"});
  const std::string digest = out.content_digest();
  save_atomically(folder / "a.h5", out.finish());
  const Hdf5Reader file(folder / "a.h5");
  const std::vector<std::int64_t> read = file.integers("/a");
  EXPECT_EQ(read, std::vector<std::int64_t>(values.begin(), values.end()));
  EXPECT_EQ(file.content_digest(), digest);
}

// One chunk that is full, one that is not, several whose last holds one entry or nearly all.
TEST(CompressedChunks, ComeBackThroughTheLibrarysFilters) {
  for (const std::size_t count : {4096u, 5000u, 65536u, 65537u, 200'001u, 262'143u}) {
    expect_back<std::uint8_t>(count);
    expect_back<std::uint16_t>(count);
    expect_back<std::int32_t>(count);
    expect_back<std::int64_t>(count);
  }
}

std::size_t file_bytes(PointSettings settings, int requests, bool token_times) {
  settings.workload.set("requests", ConfigNode::of(std::to_string(requests), false));
  settings.record.token_times = token_times;
  const Workload workload = build_point_workload(settings, "").workload;
  const PointResult result = run_point(settings, workload);
  EXPECT_TRUE(result.record.invalid_reasons.empty());
  return point_file({}, workload, result.record, result.summary).size();
}

// A million requests have 200 MB: 40,000 adapters on 60 replicas, with loads and evictions.
TEST(PointFile, ARequestTakesLessThan100Bytes) {
  constexpr int kRequests = 100'000;
  const std::string source = SERVELAB_SOURCE_DIR;
  const Spec spec =
      load_spec(source + "/tests/bench/specs/many_adapters.yaml", source + "/experiments");
  const PointSettings settings =
      resolve_point(spec, spec.positions.front(), spec.techniques.front(), 0);
  EXPECT_LT(file_bytes(settings, kRequests, false) / kRequests, 100u);
  RecordProperty("bytes", static_cast<int>(file_bytes(settings, kRequests, true) / kRequests));
}

}  // namespace
}  // namespace servelab
