// The HDF5 layer: what is written comes back, equal content gives equal bytes, damaged files are
// told apart, and a point file has the layout of results/README.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "engine/core/digest.h"
#include "engine/record/atomic_file.h"
#include "engine/record/collected_file.h"
#include "engine/record/hdf5_reader.h"
#include "engine/record/hdf5_writer.h"
#include "engine/record/point_file.h"
#include "tests/support/error_of.h"
#include "tests/support/program.h"
#include "tests/support/test_cluster.h"

namespace servelab {
namespace {

using test::error_of;

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Hdf5, WhatIsWrittenComesBack) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "a.h5";
  Hdf5Writer out("a.h5");
  const std::vector<std::int64_t> stamps = {1, -1, INT64_MAX};
  const std::vector<double> reals = {0.5, -2.25};
  out.dataset<std::int64_t>("/a/b/stamps", stamps, {"ns", "stamps"});
  out.dataset<double>("/a/reals", reals, {"s", "reals"});
  out.dataset<double>("/empty", std::span<const double>(), {"1", "nothing"});
  out.texts("/names", {"eins", "zw\xc3\xb6lf", ""}, {"text", "names"});
  out.text("/words", "line\nline", {"text", "words"});
  out.attribute("/", "name", std::string("value"));
  out.attribute("/", "long", std::string(100000, 'x'));
  out.attribute("/summary", "metric", 1.5);
  out.attribute("/summary", "count", std::int64_t{7});
  save_atomically(path, out.finish());

  const Hdf5Reader file(path);
  EXPECT_EQ(file.integers("/a/b/stamps"), stamps);
  EXPECT_EQ(file.numbers("/a/reals"), reals);
  EXPECT_TRUE(file.numbers("/empty").empty());
  EXPECT_THAT(file.texts("/names"), ElementsAre("eins", "zw\xc3\xb6lf", ""));
  EXPECT_THAT(file.texts("/words"), ElementsAre("line\nline"));
  EXPECT_EQ(file.text_attribute("/", "name"), "value");
  EXPECT_EQ(file.text_attribute("/", "long").size(), 100000u);
  EXPECT_EQ(file.text_attribute("/a/reals", "units"), "s");
  EXPECT_EQ(file.number_attributes("/summary").size(), 2u);
  EXPECT_EQ(file.int_attribute("/summary", "count"), 7);
  EXPECT_TRUE(file.has("/a/b"));
  EXPECT_FALSE(file.has("/a/c/d"));
}

TEST(Hdf5, DigestIsWhatTheHeaderSays) {
  Hdf5Writer out("a.h5");
  const std::vector<std::int32_t> values = {1, 2, 3};
  out.dataset<std::int32_t>("/a", values, {"1", "a"});
  out.texts("/b", {"x", "yz"}, {"text", "b"});
  out.text("/c", "hello", {"text", "c"});
  Sha256 sha;
  using std::string_literals::operator""s;
  sha.update("/a\0<i4\0003\0"s);
  sha.update(values.data(), 12);
  sha.update("/b\0utf8\0002\0x\0yz\0"s);
  sha.update("/c\0utf8\0\0hello"s);
  EXPECT_EQ(out.content_digest(), sha.hex());
  out.text("/context", "not part of it", {"json", "context"});
}

TEST(Hdf5, ReaderRecomputesTheDigest) {
  const test::TemporaryFolder folder;
  Hdf5Writer out("a.h5");
  const std::vector<std::int32_t> small = {1, 2, 3};
  const std::vector<std::uint16_t> large(70000, 7);  // compressed, in two chunks
  const std::vector<double> none;
  out.dataset<std::int32_t>("/a-b/c", small, {"1", "sorts before /a/b"});
  out.dataset<std::uint16_t>("/a/b", large, {"1", "b"});
  out.dataset<double>("/d", none, {"1", "d"});
  out.texts("/e", {"x", "", "yz"}, {"text", "e"});
  out.text("/f", "hello", {"text", "f"});
  const std::string written = out.content_digest();
  out.text("/context", "not part of it", {"json", "context"});
  out.external_link("/points/x", "points/x.h5");
  save_atomically(folder / "a.h5", out.finish());
  EXPECT_EQ(Hdf5Reader(folder / "a.h5").content_digest(), written);
}

TEST(Hdf5, DatasetsOutOfOrderAreABug) {
  Hdf5Writer out("a.h5");
  out.text("/b", "x", {"text", "b"});
  EXPECT_THROW(out.text("/a", "x", {"text", "a"}), InvariantError);
}

TEST(Hdf5, UnreadableFilesAreToldInOneLine) {
  const test::TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { Hdf5Reader(folder / "none.h5"); }), HasSubstr("cannot be read"));
  const std::string text = folder.file("text.h5", "hello");
  EXPECT_THAT(error_of([&] { Hdf5Reader{text}; }), HasSubstr("not a whole HDF5 file"));
  Hdf5Writer out("a.h5");
  const std::vector<double> values(100000, 1.0);
  out.dataset<double>("/a", values, {"1", "a"});
  const std::vector<std::byte> image = out.finish();
  const std::string cut = folder.file(
      "cut.h5", std::string(reinterpret_cast<const char*>(image.data()), image.size() / 2));
  const std::string message = error_of([&] { Hdf5Reader{cut}; });
  EXPECT_THAT(message, HasSubstr("truncated"));
  EXPECT_THAT(message, HasSubstr("run the spec again"));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST(Hdf5, SavingIntoAMissingFolderIsAnError) {
  const test::TemporaryFolder folder;
  const std::vector<std::byte> bytes(10);
  EXPECT_THAT(error_of([&] { save_atomically(folder / "no/a.h5", bytes); }),
              HasSubstr("No such file or directory"));
}

PointIdentity identity() {
  PointIdentity point;
  point.key = "0123456789abcdef";
  point.spec_id = "test/point";
  point.technique = "slora";
  point.backend = "twin";
  point.sweep = "{}";
  point.context = "{\"wall_s\":1}";
  return point;
}

RunRecord run_all(const Workload& workload, const std::string& technique) {
  test::RunOptions options;
  options.technique = technique;
  options.engine = test::small_engine();
  options.record.token_times = true;
  options.record.decision_text = true;
  options.record.bin = from_seconds(0.01);
  return test::run(workload, options);
}

TEST(PointFile, HasTheLayoutOfTheReadme) {
  const Workload workload = test::make_workload({}, 1);
  const RunRecord record = run_all(workload, "dlora");
  const Summary summary = summarize(workload, record);
  const test::TemporaryFolder folder;
  const std::string path = folder / "point.h5";
  save_atomically(path, point_file(identity(), workload, record, summary));
  const Hdf5Reader file(path);
  for (const char* name :
       {"key", "spec_id", "technique", "backend", "hardware", "model", "trace", "status", "reasons",
        "notes", "content_digest", "decision_hash", "build_id"}) {
    EXPECT_NO_THROW(file.text_attribute("/", name)) << name;
  }
  EXPECT_EQ(file.int_attribute("/", "schema"), kResultSchema);
  EXPECT_EQ(file.int_attribute("/", "seed"), 0);
  for (const char* name : {"/spec/requested",
                           "/spec/effective",
                           "/spec/sweep",
                           "/context",
                           "/sources",
                           "/requests/adapter",
                           "/requests/rank",
                           "/requests/scheduled",
                           "/requests/admitted",
                           "/requests/load_start",
                           "/requests/load_end",
                           "/requests/prefill_start",
                           "/requests/first_token",
                           "/requests/last_token",
                           "/requests/prompt_tokens",
                           "/requests/output_tokens",
                           "/requests/output_tokens_limit",
                           "/requests/output_tokens_true",
                           "/requests/replica",
                           "/requests/status",
                           "/requests/reject_reason",
                           "/requests/preemptions",
                           "/tokens/offsets",
                           "/tokens/times",
                           "/series/start",
                           "/series/replica",
                           "/series/steps",
                           "/series/merged_steps",
                           "/series/batch_requests",
                           "/series/prompt_tokens",
                           "/series/generation_tokens",
                           "/series/num_requests_running",
                           "/series/num_requests_waiting",
                           "/series/kv_blocks_used",
                           "/series/kv_cache_usage_perc",
                           "/series/adapters_resident",
                           "/gauges/alpha_switch/time",
                           "/gauges/alpha_switch/value",
                           "/gauges/alpha_switch/replica",
                           "/events/time",
                           "/events/code",
                           "/events/replica",
                           "/events/subject",
                           "/events/value",
                           "/replicas/dense",
                           "/replicas/loads",
                           "/itl/lower_edge_ns",
                           "/itl/count",
                           "/decisions"}) {
    ASSERT_TRUE(file.has(name)) << name;
    EXPECT_NE(file.text_attribute(name, "units"), "") << name;
    EXPECT_NE(file.text_attribute(name, "description"), "") << name;
  }
  EXPECT_EQ(file.text_attribute("/series/num_requests_running", "prometheus"),
            "vllm:num_requests_running");
  EXPECT_EQ(file.text_attribute("/series/generation_tokens", "prometheus"),
            "vllm:generation_tokens_total");
  const std::vector<double> used = file.numbers("/series/kv_cache_usage_perc");
  const std::vector<std::int64_t> blocks = file.integers("/series/kv_blocks_used");
  ASSERT_FALSE(used.empty());
  EXPECT_DOUBLE_EQ(used[0], static_cast<double>(blocks[0]) /
                                static_cast<double>(record.replicas[0].kv_blocks_total));
  EXPECT_EQ(file.integers("/requests/scheduled").size(), workload.requests.size());
  EXPECT_EQ(file.integers("/requests/last_token")[3], record.requests[3].last_token);
  EXPECT_EQ(file.integers("/tokens/times").size(), record.token_times.size());
  EXPECT_EQ(file.texts("/decisions")[0], record.decisions);
  EXPECT_EQ(file.number_attributes("/summary").size(), summary.size());
}

TEST(PointFile, EqualRunsAreEqualFiles) {
  const Workload workload = test::make_workload({}, 1);
  const RunRecord record = run_all(workload, "slora");
  const RunRecord again = run_all(workload, "slora");
  const auto a = point_file(identity(), workload, record, summarize(workload, record));
  const auto b = point_file(identity(), workload, again, summarize(workload, again));
  EXPECT_EQ(a, b);
  // The context changes its own bytes and the checksum only.
  PointIdentity other = identity();
  other.context = "{\"wall_s\":2}";
  const auto c = point_file(other, workload, record, summarize(workload, record));
  ASSERT_EQ(a.size(), c.size());
  std::size_t different = 0;
  const std::size_t body = a.size() - checksum_trailer({}).size();
  for (std::size_t i = 0; i < body; ++i) different += a[i] != c[i] ? 1 : 0;
  EXPECT_EQ(different, 1u);
}

TEST(PointFile, CacheTellsGoodFromBad) {
  const test::TemporaryFolder folder;
  const Workload workload = test::make_workload({}, 1);
  const RunRecord record = run_all(workload, "slora");
  const auto bytes = point_file(identity(), workload, record, summarize(workload, record));
  const std::string path = folder / "point.h5";
  std::string damage = "not cleared";
  EXPECT_FALSE(read_point(path, identity().key, &damage));
  EXPECT_EQ(damage, "");
  save_atomically(path, bytes);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 1; i < 80; ++i) ASSERT_TRUE(read_point(path, identity().key, &damage));
  const auto point = read_point(path, identity().key, &damage);
  ASSERT_TRUE(point) << damage;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  EXPECT_EQ(point->status, "VALID");
  EXPECT_EQ(value_of(point->summary, "requests_total"), 200);
  EXPECT_FALSE(read_point(path, "another key", &damage));
  EXPECT_EQ(damage, "it is another point's file");
  test::write_file(path,
                   std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size() - 100));
  EXPECT_FALSE(read_point(path, identity().key, &damage));
  EXPECT_EQ(damage, "its checksum does not match");
}

// Damage anywhere is noticed before HDF5, which may crash on it, opens the file.
TEST(PointFile, AnyFlippedBitIsNoticed) {
  const test::TemporaryFolder folder;
  const Workload workload = test::make_workload({}, 1);
  const RunRecord record = run_all(workload, "slora");
  const auto bytes = point_file(identity(), workload, record, summarize(workload, record));
  std::string damage;
  for (std::size_t at = 0; at < bytes.size(); at += 1 + bytes.size() / 200) {
    std::vector<std::byte> flipped = bytes;
    flipped[at] ^= std::byte{4};
    save_atomically(folder / "point.h5", flipped);
    EXPECT_FALSE(read_point(folder / "point.h5", identity().key, &damage)) << "byte " << at;
    EXPECT_EQ(damage, "its checksum does not match");
  }
}

TEST(PointFile, MillionRequestsInSeconds) {
  Workload workload;
  workload.adapters.resize(100);
  workload.requests.resize(1'000'000);
  RunRecord record;
  record.requests.resize(workload.requests.size());
  std::uint64_t state = 1;
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const auto noise = static_cast<TimeNs>(state >> 34);
    const TimeNs at = static_cast<TimeNs>(i) * 3'000'000 + noise % 3'000'000;
    workload.requests[i].arrival = at;
    workload.requests[i].adapter = static_cast<AdapterId>(noise % 100);
    workload.requests[i].prompt_tokens = 1 + static_cast<int>(noise % 512);
    RequestRecord& r = record.requests[i];
    r.admitted = at + noise % 1'000'003;
    r.prefill_start = r.admitted;
    r.first_token = r.admitted + noise % 40'000'007;
    r.last_token = r.first_token + noise % 4'000'000'007;
    r.generated = 2;
    r.status = RequestStatus::kFinished;
  }
  const auto start = std::chrono::steady_clock::now();
  const Summary summary = summarize(workload, record);
  const auto bytes = point_file(identity(), workload, record, summary);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_GT(bytes.size(), 10u << 20);
  EXPECT_LT(took.count(), 10);
  RecordProperty("seconds", std::to_string(took.count()));
}

TEST(CollectedFile, ColumnsInSpecOrder) {
  const test::TemporaryFolder folder;
  CollectedHeader header;
  header.spec_id = "a/b";
  header.title = "title";
  header.spec = "title: title\n";
  header.spec_path = "experiments/a/b.yaml";
  header.swept = {"engine.max_batch", "workload.arrivals.rate", "model"};
  std::vector<CollectedRow> rows(2);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].label = i == 0 ? "z" : "a";
    rows[i].technique = "slora";
    rows[i].seed = static_cast<std::int64_t>(i);
    rows[i].key = "key" + std::to_string(i);
    rows[i].coordinates = {ConfigNode::of(i == 0 ? "8" : "16", false),
                           ConfigNode::of(i == 0 ? "1" : "0.5", false), ConfigNode::of("m")};
    rows[i].point.status = "VALID";
    rows[i].point.content_digest = "digest" + std::to_string(i);
    rows[i].point.summary = {{"steps", 3.0}};
  }
  rows[1].point.summary.push_back({"extra", 1.0});
  const std::string path = folder / "collected.h5";
  save_atomically(path, collected_file(header, rows));
  const Hdf5Reader file(path);
  EXPECT_THAT(file.texts("/columns/technique"), ElementsAre("z", "a"));
  EXPECT_THAT(file.integers("/columns/seed"), ElementsAre(0, 1));
  EXPECT_THAT(file.integers("/columns/sweep.engine.max_batch"), ElementsAre(8, 16));
  EXPECT_THAT(file.numbers("/columns/sweep.workload.arrivals.rate"), ElementsAre(1, 0.5));
  EXPECT_THAT(file.texts("/columns/sweep.model"), ElementsAre("m", "m"));
  EXPECT_TRUE(std::isnan(file.numbers("/columns/summary.extra")[0]));
  EXPECT_THAT(file.texts("/columns/file"), ElementsAre("points/key0.h5", "points/key1.h5"));
  EXPECT_THAT(file.texts("/columns/content_digest"), ElementsAre("digest0", "digest1"));
  EXPECT_EQ(file.text_attribute("/", "spec"), header.spec);
  EXPECT_EQ(file.text_attribute("/", "spec_path"), header.spec_path);
  const auto facts = read_collected(path);
  ASSERT_TRUE(facts);
  EXPECT_EQ(facts->spec, header.spec);
  EXPECT_THAT(facts->keys, ElementsAre("key0", "key1"));
  EXPECT_FALSE(read_collected(folder / "none.h5"));
  EXPECT_TRUE(read_collected(folder.file("bad.h5", "no HDF5"))->keys.empty());
}

}  // namespace
}  // namespace servelab
