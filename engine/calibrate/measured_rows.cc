#include "engine/calibrate/measured_rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/core/check.h"
#include "engine/spec/spec_text.h"
#include "engine/workload/csv.h"

namespace servelab {
namespace {

constexpr const char* kMeasured = "measured";
constexpr const char* kRemedy = "engine/calibrate/measured_rows.h says which columns there are";
// Beyond these a value can only be of another unit.
constexpr double kLongestStep_s = 20;
constexpr double kShortestStep_s = 20e-6;

const std::vector<std::pair<std::string, double MeasuredStep::*>>& step_columns() {
  static const std::vector<std::pair<std::string, double MeasuredStep::*>> columns = {
      {"decodes", &MeasuredStep::decodes},
      {"prefill_tokens", &MeasuredStep::prefill_tokens},
      {"adapters", &MeasuredStep::adapters},
      {"context", &MeasuredStep::context},
      {"waiting", &MeasuredStep::waiting}};
  return columns;
}

const std::vector<std::string>& outcome_columns() {
  static const std::vector<std::string> columns = {
      "tokens_per_s", "itl_s",         "itl_ms", "ttft_s",  "ttft_ms",      "latency_s",
      "latency_ms",   "out_of_memory", "load_s", "load_ms", "scheduling_s", "scheduling_ms"};
  return columns;
}

// "workload" of "workload.adapters.count", and the rest.
std::pair<std::string, std::string> split(const std::string& column) {
  const std::size_t dot = column.find('.');
  if (dot == std::string::npos) return {column, ""};
  return {column.substr(0, dot), column.substr(dot + 1)};
}

template <class Range>
bool contains(const Range& range, const std::string& value) {
  return std::find(range.begin(), range.end(), value) != range.end();
}

bool is_text(const std::string& column) { return column == "part" || column == "source"; }

bool is_setting(const std::string& column) {
  const std::vector<std::string>& sections = spec_sections();
  return contains(sections, split(column).first);
}

void stand_at(const SourceMark& where, ConfigNode* node) {
  node->mark = where;
  for (ConfigNode& item : node->items) stand_at(where, &item);
}

ConfigNode setting_of(const CsvReader& csv, const SourceMark& where, const std::string& column,
                      std::string text) {
  if (text.front() == '[') std::replace(text.begin(), text.end(), ' ', ',');
  try {
    ConfigNode node = parse_yaml(text, column);
    stand_at(where, &node);
    return node;
  } catch (const SpecError&) {
    csv.fail(column + ": " + in_quotes(text) + " is not a value; a list is written [1.6 0.8 0.4]");
  }
}

class Rows {
 public:
  explicit Rows(const std::string& path) : path_(path), csv_(path, kRemedy) { check_columns(); }

  std::vector<MeasuredRow> read() {
    std::vector<MeasuredRow> rows;
    while (csv_.next()) rows.push_back(row());
    if (rows.empty()) csv_.fail("has no rows");
    return rows;
  }

 private:
  void check_columns() const {
    bool is_measured = false;
    for (const std::string& column : csv_.columns()) {
      if (is_setting(column) || is_text(column)) continue;
      const auto [who, what] = split(column);
      is_measured = is_measured || who == kMeasured;
      if (who == "step") {
        std::vector<std::string> known;
        for (const auto& [name, member] : step_columns()) known.push_back(name);
        if (!contains(known, what)) {
          csv_.fail("unknown column " + in_quotes(column) + "; " + suggest(what, known));
        }
      } else if (!contains(outcome_columns(), what)) {
        csv_.fail("unknown column " + in_quotes(column) + ": neither a key of a spec nor " +
                  in_quotes(who + ".") + " with one of its outcomes; " +
                  suggest(what, outcome_columns()));
      }
    }
    if (!is_measured) csv_.fail("has no column measured.itl_s, measured.tokens_per_s or the like");
  }

  MeasuredRow row() const {
    MeasuredRow row;
    row.line = csv_.line_number();
    MeasuredStep step;
    for (std::size_t i = 0; i < csv_.columns().size(); ++i) {
      const std::string& column = csv_.columns()[i];
      const std::string text(csv_.text(i));
      if (text.empty()) continue;
      const auto [who, what] = split(column);
      if (is_text(column)) {
        (column == "part" ? row.part : row.source) = text;
      } else if (is_setting(column)) {
        row.settings.emplace_back(
            column,
            setting_of(csv_, {path_, csv_.line_number(), static_cast<int>(i) + 1}, column, text));
      } else if (who == "step") {
        for (const auto& [name, member] : step_columns()) {
          if (name == what) step.*member = csv_.non_negative(i);
        }
        row.step = step;
      } else {
        set(column, what, csv_.non_negative(i), &row,
            who == kMeasured ? &row.measured : &row.predicted[who]);
      }
    }
    return row;
  }

  void set(const std::string& column, const std::string& what, double value, MeasuredRow* row,
           Outcome* outcome) const {
    const bool is_ms = what.size() > 3 && what.compare(what.size() - 3, 3, "_ms") == 0;
    if (is_ms) value /= 1e3;
    if (what == "tokens_per_s") {
      outcome->tokens_per_s = value;
    } else if (what == "out_of_memory") {
      outcome->out_of_memory = value != 0;
    } else if (what.rfind("ttft", 0) == 0) {
      outcome->ttft_s = value;
    } else if (what.rfind("latency", 0) == 0) {
      outcome->latency_s = value;
    } else if (what.rfind("scheduling", 0) == 0) {
      row->scheduling_s = value;
    } else {
      if (value > kLongestStep_s || (value > 0 && value < kShortestStep_s)) {
        csv_.fail(fmt::format("{}: {:g} s is no time of a step or load; is the unit {}?", column,
                              value, is_ms ? "seconds (_s)" : "milliseconds (_ms)"));
      }
      (what.rfind("itl", 0) == 0 ? outcome->itl_s : row->load_s) = value;
    }
  }

  const std::string path_;
  CsvReader csv_;
};

}  // namespace

bool MeasuredRow::is_run() const {
  return !step && (measured.out_of_memory || !std::isnan(measured.tokens_per_s) ||
                   !std::isnan(measured.itl_s) || !std::isnan(measured.ttft_s) ||
                   !std::isnan(measured.latency_s));
}

MeasuredRows read_measured_rows(const std::string& path) { return {path, Rows(path).read()}; }

SweepPosition position_of(const Spec& spec, const MeasuredRow& row) {
  if (spec.point_count() != 1) {
    throw SpecError(spec.path +
                    ": rows set what varies, so that the spec may have no sweep, one technique and "
                    "one seed");
  }
  SweepPosition position = spec.positions.front();
  for (const auto& [key, value] : row.settings) {
    position.settings.set_path(key, value);
    position.coordinates.emplace_back(key, value);
  }
  return position;
}

}  // namespace servelab
