#include "engine/core/check.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

namespace servelab {
namespace {

std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string SourceMark::text() const {
  if (line == 0) return file;
  return file + ":" + std::to_string(line) + ":" + std::to_string(column);
}

std::string suggest(const std::string& unknown, const std::vector<std::string>& known) {
  std::string nearest;
  std::size_t best = std::numeric_limits<std::size_t>::max();
  std::string list;
  for (const std::string& name : known) {
    const std::size_t distance = edit_distance(unknown, name);
    if (distance < best) {
      best = distance;
      nearest = name;
    }
    list += (list.empty() ? "" : ", ") + name;
  }
  std::string text;
  if (!nearest.empty() && best <= std::max<std::size_t>(2, unknown.size() / 3)) {
    text = "did you mean '" + nearest + "'? ";
  }
  return text + "known: " + (list.empty() ? "(none)" : list);
}

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  const char* base = std::strrchr(file, '/');
  throw InvariantError(message + " [" + (base != nullptr ? base + 1 : file) + ":" +
                       std::to_string(line) + ": " + condition + "]");
}

}  // namespace servelab
