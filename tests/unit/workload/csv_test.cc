#include "engine/workload/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "engine/core/check.h"
#include "tests/support/error_of.h"

namespace servelab {
namespace {

using test::error_of;

using ::testing::AllOf;
using ::testing::HasSubstr;

class CsvTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = std::filesystem::path(::testing::TempDir()) / ("servelab_csv_" + name);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& text) {
    const std::string path = folder_ / "data.csv";
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  std::string write_gz(const std::string& text, std::size_t drop_bytes = 0) {
    const std::string path = folder_ / "data.csv.gz";
    gzFile file = gzopen(path.c_str(), "wb");
    gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
    gzclose(file);
    const auto size = std::filesystem::file_size(path);
    std::filesystem::resize_file(path, size - drop_bytes);
    return path;
  }
  // Reads the whole file, column 0 as a number and column 1 as a count.
  static void read_all(const std::string& path) {
    CsvReader csv(path, "run 'data/fetch x'");
    const std::size_t a = csv.column("a");
    const std::size_t b = csv.column("b");
    while (csv.next()) {
      csv.non_negative(a);
      csv.count(b);
    }
  }

  std::filesystem::path folder_;
};

TEST_F(CsvTest, ReadsPlainAndCompressedAlike) {
  std::string text = "a,b\n";
  for (int i = 0; i < 60000; ++i) text += std::to_string(i) + ".5," + std::to_string(i) + "\n";
  for (const std::string& path : {write(text), write_gz(text)}) {
    CsvReader csv(path, "");
    int rows = 0;
    while (csv.next()) {
      ASSERT_EQ(csv.number(0), rows + 0.5);
      ASSERT_EQ(csv.count(1), rows);
      ++rows;
    }
    EXPECT_EQ(rows, 60000);
    EXPECT_EQ(csv.line_number(), 60001);
  }
}

TEST_F(CsvTest, AcceptsCarriageReturnsBomAndNoFinalLineEnd) {
  CsvReader csv(write("\xEF\xBB\xBF"
                      "a,b\r\n1,2\r\n\r\n3,4"),
                "");
  EXPECT_TRUE(csv.has_column("a"));
  ASSERT_TRUE(csv.next());
  EXPECT_EQ(csv.count(1), 2);
  ASSERT_TRUE(csv.next());
  EXPECT_EQ(csv.count(1), 4);
  EXPECT_FALSE(csv.next());
}

TEST_F(CsvTest, ErrorsNameFileLineAndRemedy) {
  const auto read = [&](const std::string& text) {
    const std::string path = write(text);
    return error_of([&] { read_all(path); });
  };
  EXPECT_THAT(read("a,b\n1,2\n1,2,3\n"),
              AllOf(HasSubstr("data.csv:3: "), HasSubstr("3 columns, the header has 2"),
                    HasSubstr("run 'data/fetch x'")));
  EXPECT_THAT(read("a,b\n1,2\n1\n"), HasSubstr("data.csv:3: this row has 1 columns"));
  EXPECT_THAT(read("a,b\n1,x7\n"),
              AllOf(HasSubstr("data.csv:2: column 'b'"), HasSubstr("got 'x7'")));
  EXPECT_THAT(read("a,b\n1,-4\n"), HasSubstr("not negative; got '-4'"));
  EXPECT_THAT(read("a,b\n-0.5,4\n"), HasSubstr("column 'a' must not be negative"));
  EXPECT_THAT(read("a,b\nnan,4\n"), HasSubstr("must be a number; got 'nan'"));
  EXPECT_THAT(read("a,b\n1e999,4\n"), HasSubstr("must be a number"));
  EXPECT_THAT(read("a,b\n,4\n"), HasSubstr("must be a number; got ''"));
  EXPECT_THAT(read("a,c\n1,4\n"), HasSubstr("data.csv:1: column 'b' is missing"));
  EXPECT_THAT(read(""), HasSubstr("data.csv: the file is empty"));
}

TEST_F(CsvTest, MissingFileAndFolder) {
  EXPECT_THAT(error_of([&] { read_all(folder_ / "absent.csv"); }),
              AllOf(HasSubstr("absent.csv: no such file"), HasSubstr("run 'data/fetch x'")));
  EXPECT_THAT(error_of([&] { read_all(folder_); }), HasSubstr("is a folder"));
}

TEST_F(CsvTest, DamagedCompression) {
  std::string text = "a,b\n";
  for (int i = 0; i < 90000; ++i) text += std::to_string(i * 7919 % 100003) + ",1\n";
  const std::string cut = write_gz(text, 2000);
  EXPECT_THAT(error_of([&] { read_all(cut); }), HasSubstr("damaged or cut short"));
  const std::string no_trailer = write_gz(text, 4);
  EXPECT_THAT(error_of([&] { read_all(no_trailer); }), HasSubstr("damaged or cut short"));
  const std::string flipped = write_gz(text);
  {
    std::fstream file(flipped, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(5000);
    file.put('\x55');
    file.put('\xAA');
  }
  EXPECT_NE(error_of([&] { read_all(flipped); }), "(no error)");
}

}  // namespace
}  // namespace servelab
