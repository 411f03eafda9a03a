#include "engine/workload/mooncake_trace.h"

#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "engine/workload/csv.h"
#include "engine/workload/trace_rows.h"

namespace servelab {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMaxRank = 65536;
constexpr std::int64_t kMaxModels = 65535;
constexpr std::size_t kMaxUnusedKeys = 16;
constexpr std::array<const char*, 9> kKeys = {"timestamp",  "input_length", "output_length",
                                              "max_tokens", "adapter",      "rank",
                                              "base_model", "session",      "slo"};

bool is_ours(const std::string& key) {
  return std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end();
}

// Numbers things that are numbered in the file already, or named: then by first appearance.
class Numbering {
 public:
  Numbering(const char* key, std::int64_t limit) : key_(key), limit_(limit) {}

  std::int32_t number(const Json& value, const LineReader& lines) {
    const bool is_name = value.is_string();
    if (!is_name && !(value.is_number_unsigned() && value.get<std::uint64_t>() < limit())) {
      lines.fail(std::string("'") + key_ + "' must be an index or a name");
    }
    if (seen_ && is_name != named_) {
      lines.fail(std::string("'") + key_ + "' is a name in some lines and an index in others");
    }
    seen_ = true;
    named_ = is_name;
    if (!is_name) return static_cast<std::int32_t>(value.get<std::uint64_t>());
    const auto next = static_cast<std::int32_t>(names_.size());
    const std::int32_t number = names_.try_emplace(value.get<std::string>(), next).first->second;
    if (number >= limit_) lines.fail(std::string("too many values of '") + key_ + "'");
    return number;
  }

 private:
  std::uint64_t limit() const { return static_cast<std::uint64_t>(limit_); }

  const char* key_;
  std::int64_t limit_;
  bool seen_ = false;
  bool named_ = false;
  std::map<std::string, std::int32_t> names_;
};

class Reader {
 public:
  Reader(const std::string& path, const std::string& remedy, RowsFor use)
      : lines_(path, remedy), use_(use) {
    trace_.has_times = true;
  }

  RequestTrace read() {
    std::string_view line;
    while (lines_.next(&line)) {
      if (!line.empty()) read_line(line);
    }
    if (trace_.rows.empty()) lines_.fail("the file has no usable rows");
    trace_.unused_keys.assign(unused_keys_.begin(), unused_keys_.end());
    return std::move(trace_);
  }

 private:
  void read_line(std::string_view line) {
    const Json object = Json::parse(line, nullptr, false);
    if (!object.is_object()) lines_.fail("not a JSON object");
    TraceRow row;
    row.at_s = milliseconds(required(object, "timestamp"), "timestamp", 0) * 1e-3;
    row.prompt_tokens =
        trace_tokens(count(required(object, "input_length"), "input_length", 0), lines_);
    row.output_tokens =
        trace_tokens(count(required(object, "output_length"), "output_length", 0), lines_);
    for (const auto& [key, value] : object.items()) {
      if (!is_ours(key) && unused_keys_.size() < kMaxUnusedKeys) unused_keys_.insert(key);
    }
    read_superset(object, &row);
    keep_trace_row(row, use_, lines_, &trace_);
  }

  void read_superset(const Json& object, TraceRow* row) {
    if (const Json* limit = find(object, "max_tokens")) {
      row->output_limit = trace_tokens(count(*limit, "max_tokens", 1), lines_);
      if (row->output_limit < row->output_tokens) {
        lines_.fail("'max_tokens' is less than 'output_length'");
      }
    }
    if (const Json* adapter = find(object, "adapter")) {
      row->adapter = adapter->is_null() ? kRowOfBaseModel : adapters_.number(*adapter, lines_);
    }
    if (const Json* rank = find(object, "rank")) take_rank(*rank, *row);
    if (const Json* model = find(object, "base_model")) {
      row->base_model = models_.number(*model, lines_);
      trace_.base_models = std::max(trace_.base_models, row->base_model + 1);
    }
    if (const Json* session = find(object, "session")) {
      row->session = session_of(*session);
      trace_.has_sessions = true;
    }
    if (const Json* slo = find(object, "slo")) {
      row->objective = objective_of(*slo);
      trace_.has_objectives = true;
    }
  }

  void take_rank(const Json& value, const TraceRow& row) {
    const std::int64_t rank = count(value, "rank", 0);
    if (row.adapter < 0) {
      if (rank > 0) lines_.fail("'rank' needs 'adapter'");
      return;
    }
    if (rank < 1 || rank > kMaxRank) lines_.fail("'rank' must be 1 to 65536");
    const auto at = static_cast<std::size_t>(row.adapter);
    if (trace_.adapter_ranks.size() <= at) trace_.adapter_ranks.resize(at + 1, 0);
    std::int32_t& known = trace_.adapter_ranks[at];
    if (known != 0 && known != rank) {
      lines_.fail("adapter " + std::to_string(at) + " has rank " + std::to_string(rank) +
                  " here and " + std::to_string(known) + " above");
    }
    known = static_cast<std::int32_t>(rank);
  }

  std::int32_t session_of(const Json& value) {
    if (!value.is_string() && !value.is_number_integer()) {
      lines_.fail("'session' must be a whole number or a name");
    }
    const auto next = static_cast<std::int32_t>(sessions_.size());
    return sessions_.try_emplace(value.dump(), next).first->second;
  }

  RequestObjective objective_of(const Json& slo) {
    if (!slo.is_object()) lines_.fail("'slo' must be an object");
    RequestObjective objective;
    for (const auto& [key, value] : slo.items()) {
      const TimeNs limit = from_seconds(milliseconds(value, key, 1e-6) * 1e-3);
      if (key == "ttft_ms") {
        objective.ttft = limit;
      } else if (key == "tpot_ms") {
        objective.tpot = limit;
      } else if (key == "latency_ms") {
        objective.latency = limit;
      } else {
        lines_.fail("unknown key '" + key + "' in 'slo'; " +
                    suggest(key, {"ttft_ms", "tpot_ms", "latency_ms"}));
      }
    }
    return objective;
  }

  static const Json* find(const Json& object, const char* key) {
    const auto at = object.find(key);
    return at == object.end() ? nullptr : &*at;
  }

  const Json& required(const Json& object, const char* key) const {
    const Json* value = find(object, key);
    if (value == nullptr) lines_.fail(std::string("'") + key + "' is missing");
    return *value;
  }

  std::int64_t count(const Json& value, const char* key, std::int64_t least) const {
    if (!value.is_number_integer() || value.get<std::int64_t>() < least) {
      lines_.fail(std::string("'") + key + "' must be a whole number, " +
                  (least > 0 ? "at least " + std::to_string(least) : "not negative"));
    }
    return value.get<std::int64_t>();
  }

  double milliseconds(const Json& value, const std::string& key, double least) const {
    if (!value.is_number() || !(value.get<double>() >= least && value.get<double>() < 1e15)) {
      lines_.fail("'" + key + "' (milliseconds) must be a number, " +
                  (least > 0 ? "positive" : "not negative"));
    }
    return value.get<double>();
  }

  LineReader lines_;
  RowsFor use_;
  RequestTrace trace_;
  Numbering adapters_{"adapter", kMaxTraceAdapters};
  Numbering models_{"base_model", kMaxModels};
  std::map<std::string, std::int32_t> sessions_;
  std::set<std::string> unused_keys_;
};

}  // namespace

RequestTrace read_mooncake_trace(const std::string& path, const std::string& remedy, RowsFor use) {
  return Reader(path, remedy, use).read();
}

}  // namespace servelab
