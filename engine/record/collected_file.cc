#include "engine/record/collected_file.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <span>

#include "engine/core/check.h"
#include "engine/record/hdf5_reader.h"
#include "engine/record/hdf5_writer.h"

namespace servelab {
namespace {

std::string text_of(const ConfigNode& node) {
  return node.is_scalar() ? node.scalar : canonical_json(node);
}

// Metrics end in their unit where they have one.
const char* unit_of(const std::string& metric) {
  if (metric.ends_with("_per_s")) return "1/s";
  return metric.ends_with("_s") ? "s" : "1";
}

template <class T>
bool parse(const ConfigNode& node, T* out) {
  if (!node.is_scalar() || node.quoted || node.scalar.empty()) return false;
  const char* end = node.scalar.data() + node.scalar.size();
  const auto [stop, error] = std::from_chars(node.scalar.data(), end, *out);
  return error == std::errc() && stop == end;
}

template <class T>
bool parse_all(const std::vector<CollectedRow>& rows, std::size_t column, std::vector<T>* out) {
  out->resize(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!parse(rows[i].coordinates[column], &(*out)[i])) return false;
  }
  return true;
}

// Columns by name, written in path order.
class ColumnSet {
 public:
  ColumnSet(Hdf5Writer* out, const std::vector<CollectedRow>& rows) : out_(out), rows_(rows) {}

  template <class Get>
  void texts(const std::string& name, const char* description, Get get) {
    std::vector<std::string> values;
    for (const CollectedRow& row : rows_) values.push_back(get(row));
    writers_[name] = [this, name, description, values = std::move(values)] {
      out_->texts("/columns/" + name, values, {"text", description});
    };
  }
  template <class T>
  void numbers(const std::string& name, const char* units, const char* description,
               std::vector<T> values) {
    writers_[name] = [this, name, units, description, values = std::move(values)] {
      out_->dataset<T>("/columns/" + name, values, {units, description});
    };
  }
  void swept(const std::string& path, std::size_t column) {
    const char* description = "value of the swept setting";
    std::vector<std::int64_t> integers;
    std::vector<double> reals;
    if (parse_all(rows_, column, &integers)) {
      numbers("sweep." + path, "the setting's", description, std::move(integers));
    } else if (parse_all(rows_, column, &reals)) {
      numbers("sweep." + path, "the setting's", description, std::move(reals));
    } else {
      texts("sweep." + path, description,
            [&](const CollectedRow& row) { return text_of(row.coordinates[column]); });
    }
  }
  void write() {
    for (const auto& [name, writer] : writers_) writer();
  }

 private:
  Hdf5Writer* out_;
  const std::vector<CollectedRow>& rows_;
  std::map<std::string, std::function<void()>> writers_;
};

void add_metrics(const std::vector<CollectedRow>& rows, ColumnSet* columns) {
  std::set<std::string> names;
  for (const CollectedRow& row : rows) {
    for (const Metric& metric : row.point.summary) names.insert(metric.name);
  }
  for (const std::string& name : names) {
    std::vector<double> values;
    for (const CollectedRow& row : rows) values.push_back(value_of(row.point.summary, name));
    columns->numbers("summary." + name, unit_of(name), "metric of the point's summary",
                     std::move(values));
  }
}

}  // namespace

std::optional<CollectedFacts> read_collected(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  CollectedFacts facts;
  try {
    const Hdf5Reader file(path);
    facts.keys = file.texts("/columns/key");
    std::sort(facts.keys.begin(), facts.keys.end());
    facts.spec = file.text_attribute("/", "spec");
  } catch (const std::exception&) {
    return CollectedFacts{};
  }
  return facts;
}

std::vector<std::byte> collected_file(const CollectedHeader& header,
                                      const std::vector<CollectedRow>& rows) {
  Hdf5Writer out("collected.h5");
  ColumnSet columns(&out, rows);
  columns.texts("content_digest", "content_digest of the point file",
                [](const CollectedRow& row) { return row.point.content_digest; });
  columns.texts("file", "point file",
                [](const CollectedRow& row) { return "points/" + row.key + ".h5"; });
  columns.texts("key", "the point's key", [](const CollectedRow& row) { return row.key; });
  columns.texts("reasons", "why a point is INVALID",
                [](const CollectedRow& row) { return row.point.reasons; });
  columns.texts("status", "VALID or INVALID",
                [](const CollectedRow& row) { return row.point.status; });
  columns.texts("technique", "label of the technique: what tells curves apart",
                [](const CollectedRow& row) { return row.label; });
  columns.texts("technique_id", "the technique's registry name",
                [](const CollectedRow& row) { return row.technique; });
  std::vector<std::int64_t> seeds;
  for (const CollectedRow& row : rows) seeds.push_back(row.seed);
  columns.numbers("seed", "1", "seed of the workload", std::move(seeds));
  for (std::size_t i = 0; i < header.swept.size(); ++i) columns.swept(header.swept[i], i);
  add_metrics(rows, &columns);
  columns.write();

  std::set<std::string> linked;
  for (const CollectedRow& row : rows) {
    if (!linked.insert(row.key).second) continue;
    out.external_link("/points/" + row.key, "points/" + row.key + ".h5");
  }
  out.attribute("/", "schema", std::int64_t{kResultSchema});
  out.attribute("/", "spec_id", header.spec_id);
  out.attribute("/", "title", header.title);
  out.attribute("/", "figure", header.figure);
  out.attribute("/", "spec", header.spec);
  out.attribute("/", "spec_path", header.spec_path);
  out.attribute("/", "backend", header.backend);
  out.attribute("/", "hardware", header.hardware);
  out.attribute("/", "model", header.model);
  out.attribute("/", "trace", header.trace);
  out.attribute("/", "content_digest", out.content_digest());
  return out.finish();
}

}  // namespace servelab
