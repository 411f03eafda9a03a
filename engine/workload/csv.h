// Reads CSV files, plain or gzip-compressed, row by row. Every error is a SpecError that names the
// file, the line, what is wrong and how to mend it: a trace with a corrupt row is refused, never
// silently shortened. Fields are separated by commas; quoting is not supported (the traces have
// none). The first line holds the column names.
#ifndef SERVELAB_WORKLOAD_CSV_H_
#define SERVELAB_WORKLOAD_CSV_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace servelab {

// Lines of a plain or gzip-compressed text file, without their line ends.
class LineReader {
 public:
  // `remedy` ends every message ("run 'data/fetch maf1' or ...").
  LineReader(std::string path, std::string remedy);
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  bool next(std::string_view* line);  // false at the end; the view lives until the next call
  int line_number() const { return line_number_; }
  [[noreturn]] void fail(const std::string& what) const;  // at the present line

 private:
  bool fill();

  struct Stream;
  std::unique_ptr<Stream> stream_;
  std::string path_;
  std::string remedy_;
  std::string buffer_;
  std::size_t begin_ = 0;  // the unread part of buffer_
  int line_number_ = 0;
  bool at_end_ = false;
};

class CsvReader {
 public:
  CsvReader(const std::string& path, const std::string& remedy);

  const std::vector<std::string>& columns() const { return columns_; }
  bool has_column(const std::string& name) const;
  std::size_t column(const std::string& name) const;  // throws if missing

  // Advances; false at the end of the file. Throws if the row has another number of columns than
  // the header. Empty lines are skipped.
  bool next();
  std::string_view text(std::size_t column) const { return cells_[column]; }
  double number(std::size_t column) const;        // finite, or throws
  double non_negative(std::size_t column) const;  // >= 0, or throws
  std::int64_t count(std::size_t column) const;   // a whole number >= 0, or throws
  int line_number() const { return lines_.line_number(); }
  [[noreturn]] void fail(const std::string& what) const { lines_.fail(what); }

 private:
  void split(std::string_view line);

  LineReader lines_;
  std::vector<std::string> columns_;
  std::vector<std::string_view> cells_;
};

}  // namespace servelab

#endif  // SERVELAB_WORKLOAD_CSV_H_
