#include "engine/workload/csv.h"

#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <utility>

#include "engine/core/check.h"

namespace servelab {
namespace {

constexpr std::size_t kChunkBytes = 1 << 17;
constexpr std::size_t kMaxLineBytes = 1 << 26;

std::string shown(std::string_view cell) {
  return "'" + std::string(cell.substr(0, 40)) + (cell.size() > 40 ? "...'" : "'");
}

}  // namespace

struct LineReader::Stream {
  gzFile file = nullptr;  // zlib also reads files that are not compressed
  ~Stream() {
    if (file != nullptr) gzclose(file);
  }
};

LineReader::LineReader(std::string path, std::string remedy)
    : stream_(std::make_unique<Stream>()), path_(std::move(path)), remedy_(std::move(remedy)) {
  std::error_code ignored;
  if (!std::filesystem::exists(path_, ignored)) fail("no such file");
  if (std::filesystem::is_directory(path_, ignored)) fail("is a folder, expected a file");
  stream_->file = gzopen(path_.c_str(), "rb");
  if (stream_->file == nullptr) fail("cannot be opened");
  gzbuffer(stream_->file, kChunkBytes);
}

LineReader::~LineReader() = default;

void LineReader::fail(const std::string& what) const {
  std::string where = path_;
  if (line_number_ > 0) where += ":" + std::to_string(line_number_);
  throw SpecError(where + ": " + what + (remedy_.empty() ? "" : "; " + remedy_));
}

bool LineReader::fill() {
  if (at_end_) return false;
  buffer_.erase(0, begin_);
  begin_ = 0;
  const std::size_t kept = buffer_.size();
  if (kept > kMaxLineBytes) fail("a line is longer than 64 MiB; this is not a text file");
  buffer_.resize(kept + kChunkBytes);
  const int got = gzread(stream_->file, buffer_.data() + kept, kChunkBytes);
  int status = Z_OK;
  const std::string message = gzerror(stream_->file, &status);
  if (got < 0 || (status != Z_OK && status != Z_STREAM_END)) {
    fail("the compressed data is damaged or cut short (" + message + ")");
  }
  buffer_.resize(kept + static_cast<std::size_t>(got));
  at_end_ = got == 0;
  return got > 0;
}

bool LineReader::next(std::string_view* line) {
  std::size_t searched = 0;
  std::size_t end = std::string::npos;
  while (true) {
    end = buffer_.find('\n', begin_ + searched);
    if (end != std::string::npos) break;
    searched = buffer_.size() - begin_;
    if (!fill()) break;
  }
  if (end == std::string::npos) {
    if (begin_ >= buffer_.size()) return false;
    end = buffer_.size();  // the last line has no line end
  }
  std::size_t length = end - begin_;
  if (length > 0 && buffer_[begin_ + length - 1] == '\r') --length;
  *line = std::string_view(buffer_).substr(begin_, length);
  begin_ = std::min(end + 1, buffer_.size());
  ++line_number_;
  return true;
}

CsvReader::CsvReader(const std::string& path, const std::string& remedy) : lines_(path, remedy) {
  std::string_view header;
  if (!lines_.next(&header)) fail("the file is empty");
  if (header.substr(0, 3) == "\xEF\xBB\xBF") header.remove_prefix(3);
  split(header);
  columns_.assign(cells_.begin(), cells_.end());
}

void CsvReader::split(std::string_view line) {
  cells_.clear();
  std::size_t begin = 0;
  while (true) {
    const std::size_t comma = line.find(',', begin);
    cells_.push_back(line.substr(begin, comma == std::string_view::npos ? comma : comma - begin));
    if (comma == std::string_view::npos) return;
    begin = comma + 1;
  }
}

bool CsvReader::has_column(const std::string& name) const {
  return std::find(columns_.begin(), columns_.end(), name) != columns_.end();
}

std::size_t CsvReader::column(const std::string& name) const {
  const auto at = std::find(columns_.begin(), columns_.end(), name);
  if (at == columns_.end()) {
    std::vector<std::string> first(
        columns_.begin(), columns_.begin() + std::min<std::ptrdiff_t>(12, std::ssize(columns_)));
    fail("column '" + name + "' is missing (" + suggest(name, first) + ")");
  }
  return static_cast<std::size_t>(at - columns_.begin());
}

bool CsvReader::next() {
  std::string_view line;
  do {
    if (!lines_.next(&line)) return false;
  } while (line.empty());
  split(line);
  if (cells_.size() != columns_.size()) {
    fail("this row has " + std::to_string(cells_.size()) + " columns, the header has " +
         std::to_string(columns_.size()));
  }
  return true;
}

double CsvReader::number(std::size_t column) const {
  const std::string_view cell = cells_[column];
  double value = 0;
  const auto [stop, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc() || stop != cell.data() + cell.size() || !std::isfinite(value)) {
    fail("column '" + columns_[column] + "' must be a number; got " + shown(cell));
  }
  return value;
}

double CsvReader::non_negative(std::size_t column) const {
  const double value = number(column);
  if (value < 0) {
    fail("column '" + columns_[column] + "' must not be negative; got " + shown(cells_[column]));
  }
  return value;
}

std::int64_t CsvReader::count(std::size_t column) const {
  const std::string_view cell = cells_[column];
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc() || stop != cell.data() + cell.size() || value < 0) {
    fail("column '" + columns_[column] + "' must be a whole number, not negative; got " +
         shown(cell));
  }
  return value;
}

}  // namespace servelab
