// Reading and writing safetensors: what is damaged is refused in one line, and nothing crashes.
#include "engine/model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "engine/core/rng.h"
#include "tests/support/error_of.h"
#include "tests/support/program.h"
#include "tests/unit/model/weights_testing.h"

namespace servelab {
namespace {

using test::error_of;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string file_of(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

std::map<std::string, StoredTensor> parse(const std::string& bytes) {
  return parse_safetensors(std::as_bytes(std::span(bytes.data(), bytes.size())), "f");
}

std::string parse_error(const std::string& bytes) {
  return error_of([&] { parse(bytes); });
}

std::string entry(const std::string& name, const std::string& type, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + type + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

Tensor of_floats(const std::vector<float>& values, int rows, int columns) {
  return {kernels::DType::kF32, rows, columns, values.data(), nullptr};
}

TEST(SafetensorsTest, WrittenTensorsAreReadBack) {
  const std::vector<float> values = {1, -2, 3.5f, 0, 5, 6};
  const std::vector<kernels::Bf16> halves = {kernels::to_bf16(0.5f), kernels::to_bf16(-8)};
  const TemporaryFolder folder;
  folder.file("x.safetensors",
              safetensors_bytes({{"b", {kernels::DType::kBf16, 1, 2, halves.data(), nullptr}},
                                 {"a", of_floats(values, 2, 3)}}));
  const TensorFiles files = TensorFiles::open_file(folder / "x.safetensors");
  EXPECT_EQ(files.entries().size(), 2u);
  const Tensor a = files.take("a", 2, 3);
  EXPECT_EQ(std::memcmp(a.data, values.data(), 24), 0);
  const Tensor b = files.take("b", 1, 2);
  EXPECT_EQ(b.type, kernels::DType::kBf16);
  EXPECT_EQ(test::value_at(b, 1), -8);
}

TEST(SafetensorsTest, ATensorKeepsItsFileAlive) {
  const TemporaryFolder folder;
  const std::vector<float> values(5000, 2.5f);
  folder.file("x.safetensors", safetensors_bytes({{"a", of_floats(values, 50, 100)}}));
  Tensor a;
  {
    const TensorFiles files = TensorFiles::open_file(folder / "x.safetensors");
    a = files.take("a", 50, 100);
  }
  std::filesystem::remove(folder / "x.safetensors");
  EXPECT_EQ(test::value_at(a, 4999), 2.5f);
}

TEST(SafetensorsTest, UnalignedDataAreCopied) {
  const TemporaryFolder folder;
  const float value = 7;
  std::string data(reinterpret_cast<const char*>(&value), 4);
  std::string header = "{" + entry("a", "F32", "[1]", "[0,4]") + "}";
  while (header.size() % 4 != 1) header += ' ';
  folder.file("x.safetensors", file_of(header, data));
  const Tensor a = TensorFiles::open_file(folder / "x.safetensors").take("a", 0, 1);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data) % 4, 0u);
  EXPECT_EQ(test::value_at(a, 0), 7);
}

TEST(SafetensorsTest, DamagedHeadersAreRefused) {
  const std::string data(8, '\0');
  const std::string good = entry("a", "F32", "[2]", "[0,8]");
  EXPECT_EQ(parse_error(file_of("{" + good + "}", data)), "");
  EXPECT_THAT(parse_error("abc"), AllOf(HasSubstr("3 bytes"), HasSubstr("truncated")));
  EXPECT_THAT(parse_error(file_of("{" + good + "}", "").substr(0, 20)), HasSubstr("truncated"));
  EXPECT_THAT(parse_error(std::string(8, '\xff') + "{}"), HasSubstr("18446744073709551615"));
  EXPECT_THAT(parse_error(file_of("not json", data)), HasSubstr("f (header):1:2: not valid JSON"));
  EXPECT_THAT(parse_error(file_of("[]", "")), HasSubstr("no JSON object"));
  EXPECT_THAT(parse_error(file_of("{" + good + "," + good + "}", data)),
              HasSubstr("duplicate key 'a'"));
  EXPECT_THAT(parse_error(file_of("{\"a\":3}", data)), HasSubstr("tensor 'a'"));
  EXPECT_THAT(parse_error(file_of("{\"__metadata__\":{\"x\":1}}", "")), HasSubstr("__metadata__"));
  EXPECT_THAT(parse_error(file_of(std::string(100000, '['), "")), HasSubstr("nested deeper"));
  EXPECT_THAT(parse_error(file_of("{\"a\":1e999}", "")), HasSubstr("out of range"));
}

TEST(SafetensorsTest, DamagedEntriesAreRefusedByName) {
  const auto error = [](const std::string& type, const std::string& shape,
                        const std::string& offsets) {
    return parse_error(file_of("{" + entry("t", type, shape, offsets) + "}", std::string(8, '\0')));
  };
  EXPECT_THAT(error("F99", "[2]", "[0,8]"), AllOf(HasSubstr("tensor 't'"), HasSubstr("F99")));
  EXPECT_THAT(error("F32", "[2]", "[0,9]"), HasSubstr("outside"));
  EXPECT_THAT(error("F32", "[2]", "[8,0]"), HasSubstr("outside"));
  EXPECT_THAT(error("F32", "[2]", "[0]"), HasSubstr("two numbers"));
  EXPECT_THAT(error("F32", "[2]", "[-1,8]"), HasSubstr("whole numbers"));
  EXPECT_THAT(error("F32", "[3]", "[0,8]"), HasSubstr("needs 12 bytes"));
  EXPECT_THAT(error("F32", "[2.5]", "[0,8]"), HasSubstr("whole numbers"));
  EXPECT_THAT(error("F32", "[4294967296,4294967296]", "[0,8]"), HasSubstr("overflows"));
  EXPECT_THAT(error("F32", "[18446744073709551615]", "[0,8]"), HasSubstr("overflows"));
  EXPECT_THAT(error("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), HasSubstr("at most 8"));
  EXPECT_THAT(error("F32", "[1]", "[0,4]"), HasSubstr("belong to no tensor"));
  EXPECT_THAT(error("F32", "[1]", "[4,8]"), HasSubstr("gap"));
}

TEST(SafetensorsTest, OverlappingTensorsAreRefused) {
  const std::string header =
      "{" + entry("a", "F32", "[2]", "[0,8]") + "," + entry("b", "F32", "[2]", "[4,12]") + "}";
  EXPECT_THAT(parse_error(file_of(header, std::string(12, '\0'))),
              AllOf(HasSubstr("'b'"), HasSubstr("overlapping")));
}

TEST(SafetensorsTest, TakingChecksTypeShapeAndValues) {
  const TemporaryFolder folder;
  std::vector<float> values(20000, 1);
  values[12345] = std::numeric_limits<float>::quiet_NaN();
  folder.file("nan.safetensors", safetensors_bytes({{"w", of_floats(values, 200, 100)}}));
  const TensorFiles bad = TensorFiles::open_file(folder / "nan.safetensors");
  EXPECT_THAT(error_of([&] { bad.take("w", 200, 100); }),
              AllOf(HasSubstr("nan.safetensors"), HasSubstr("'w'"), HasSubstr("[123, 45]")));
  EXPECT_THAT(error_of([&] { bad.take("w", 100, 200); }),
              AllOf(HasSubstr("[200, 100]"), HasSubstr("needs [100, 200]")));
  EXPECT_THAT(error_of([&] { bad.take("w", TensorFiles::kVector, 100); }),
              HasSubstr("needs [100]"));
  EXPECT_THAT(error_of([&] { bad.take("v", 1, 1); }), HasSubstr("'v' is missing"));
  const std::string header =
      "{" + entry("i", "I64", "[1]", "[0,8]") + "," + entry("inf", "F16", "[2]", "[8,12]") + "}";
  folder.file("i.safetensors", file_of(header, std::string(10, '\0') + std::string("\x00\x7c", 2)));
  const TensorFiles other = TensorFiles::open_file(folder / "i.safetensors");
  EXPECT_THAT(error_of([&] { other.take("i", 0, 1); }), HasSubstr("dtype I64"));
  EXPECT_THAT(error_of([&] { other.take("inf", 0, 2); }), HasSubstr("[1] is not finite"));
}

TEST(SafetensorsTest, FilesThatCannotBeMappedAreRefused) {
  const TemporaryFolder folder;
  folder.file("empty", "");
  EXPECT_THAT(error_of([&] { MappedFile(folder / "none"); }), HasSubstr("no such file"));
  EXPECT_THAT(error_of([&] { MappedFile(folder / "empty"); }), HasSubstr("is empty"));
  EXPECT_THAT(error_of([&] { MappedFile(folder.path()); }), HasSubstr("not a regular file"));
}

TEST(SafetensorsTest, AFileThatIsCutShortInUseIsNotReadOn) {
  const TemporaryFolder folder;
  const std::vector<float> values(5000, 1);
  folder.file("x.safetensors", safetensors_bytes({{"a", of_floats(values, 50, 100)}}));
  const TensorFiles files = TensorFiles::open_file(folder / "x.safetensors");
  std::filesystem::resize_file(folder / "x.safetensors", 100);
  EXPECT_THAT(error_of([&] { files.take("a", 50, 100); }), HasSubstr("cut short"));
}

TEST(SafetensorsTest, ShardsAndTheirIndexMustAgree) {
  const TemporaryFolder folder;
  const std::vector<float> values = {1, 2};
  const auto open = [&] { return TensorFiles::open_folder(folder.path(), "m"); };
  const auto index = [&](const std::string& map) {
    folder.file("m.safetensors.index.json", "{\"weight_map\": {" + map + "}}");
  };
  EXPECT_THAT(error_of(open), HasSubstr("neither"));
  folder.file("1.safetensors", safetensors_bytes({{"a", of_floats(values, 1, 2)}}));
  folder.file("2.safetensors", safetensors_bytes({{"b", of_floats(values, 2, 1)}}));
  index(R"("a": "1.safetensors", "b": "2.safetensors")");
  EXPECT_EQ(test::value_at(open().take("b", 2, 1), 1), 2);
  index(R"("a": "1.safetensors", "b": "1.safetensors")");
  EXPECT_THAT(error_of(open), AllOf(HasSubstr("'b'"), HasSubstr("1.safetensors")));
  index(R"("a": "1.safetensors", "b": "3.safetensors")");
  EXPECT_THAT(error_of(open), HasSubstr("3.safetensors: no such file"));
  index(R"("a": "../1.safetensors")");
  EXPECT_THAT(error_of(open), HasSubstr("file of the folder"));
  folder.file("2.safetensors", safetensors_bytes({{"a", of_floats(values, 2, 1)}}));
  index(R"("a": "1.safetensors", "b": "2.safetensors")");
  EXPECT_THAT(error_of(open), AllOf(HasSubstr("'a'"), HasSubstr("too")));
}

TEST(SafetensorsTest, RandomDamageIsAnErrorOrHarmlessButNeverACrash) {
  const std::vector<float> values(64, 1);
  const std::string good =
      safetensors_bytes({{"first", of_floats(values, 4, 8)}, {"second", of_floats(values, 2, 16)}});
  RngStream rng(1, "damage");
  int refused = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string bytes = good.substr(0, rng.below(4) == 0 ? rng.below(good.size()) : good.size());
    for (std::uint64_t flips = rng.below(4); flips > 0 && !bytes.empty(); --flips) {
      bytes[rng.below(bytes.size())] = static_cast<char>(rng.below(256));
    }
    const std::string error = error_of([&] {
      for (const auto& [name, stored] : parse(bytes)) to_tensor(stored, nullptr, "f", name);
    });
    if (!error.empty()) ++refused;
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace servelab
