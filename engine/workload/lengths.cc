#include "engine/workload/lengths.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/core/portable_math.h"
#include "engine/workload/request_trace.h"

namespace servelab {
namespace {

constexpr int kMaxTries = 10000;  // of a draw that must pass the filter
constexpr double kMaxLength = 1e8;
constexpr int kDrawsForMeans = 200000;

std::int32_t whole(double tokens) {
  return static_cast<std::int32_t>(std::floor(std::clamp(tokens, 1.0, kMaxLength) + 0.5));
}

const EmbeddedLengths* find_embedded(const std::string& name) {
  for (const EmbeddedLengths& lengths : embedded_lengths()) {
    if (name == lengths.name) return &lengths;
  }
  return nullptr;
}

std::string without_like(const std::string& name) {
  const std::size_t at = name.rfind("-like");
  return at != std::string::npos && at + 5 == name.size() ? name.substr(0, at) : name;
}

bool is_parametric(const std::string& source) {
  return source == "fixed" || source == "uniform" || source == "normal" || source == "lognormal" ||
         source == "trace";
}

const ConfigNode& place_of(const ConfigNode& section, const std::string& key) {
  const ConfigNode* node = section.find(key);
  return node != nullptr ? *node : section;
}

void check_range(const ConfigNode& section, const std::string& key,
                 const std::vector<double>& range) {
  if (range.size() != 2 || range[0] != std::floor(range[0]) || range[1] != std::floor(range[1]) ||
      range[1] <= range[0]) {
    throw SpecError(place_of(section, key).mark,
                    "'" + key + "' must be two whole numbers, [low, high) with low < high");
  }
}

}  // namespace

std::vector<std::string> length_source_names() {
  std::vector<std::string> names = {"fixed", "uniform", "normal", "lognormal", "trace"};
  for (const auto& name : data_file_names({TraceKind::kLengths, TraceKind::kRequests})) {
    names.push_back(name);
  }
  for (const EmbeddedLengths& lengths : embedded_lengths()) {
    names.push_back(std::string(lengths.name) + "-like");
  }
  return names;
}

EmbeddedLengthModel::EmbeddedLengthModel(const EmbeddedLengths& lengths) {
  for (std::size_t i = 0; i < scores_.size(); ++i) {
    const double q = kLengthQuantiles[i];
    scores_[i] = q <= 0 ? -kExtremeScore : q >= 1 ? kExtremeScore : portable::normal_quantile(q);
  }
  for (const LengthComponent& one : lengths.components) {
    const double r = one.correlation;
    Component& component = components_.emplace_back();
    component.weight = one.weight;
    component.correlation = r;
    component.rest = std::sqrt(1 - r * r);
    for (std::size_t i = 0; i < scores_.size(); ++i) {
      component.prompt_logs[i] = portable::log(one.prompt[i]);
      component.output_logs[i] = portable::log(one.output[i]);
    }
  }
}

double EmbeddedLengthModel::length_at(const Table& logs, double z) const {
  z = std::clamp(z, scores_.front(), scores_.back());
  const auto upper = std::upper_bound(scores_.begin() + 1, scores_.end() - 1, z);
  const auto i = static_cast<std::size_t>(upper - scores_.begin());
  const double t = (z - scores_[i - 1]) / (scores_[i] - scores_[i - 1]);
  return portable::exp(logs[i - 1] * (1 - t) + logs[i] * t);
}

LengthPair EmbeddedLengthModel::draw(RngStream* rng) const {
  double u = components_.size() > 1 ? rng->uniform() : 0;
  const Component* chosen = &components_.back();
  for (const Component& component : components_) {
    if (u < component.weight) {
      chosen = &component;
      break;
    }
    u -= component.weight;
  }
  const double z1 = rng->normal();
  const double z2 = chosen->correlation * z1 + chosen->rest * rng->normal();
  return {whole(length_at(chosen->prompt_logs, z1)), whole(length_at(chosen->output_logs, z2))};
}

LengthSampler::LengthSampler(LengthSettings* settings, const ConfigNode& section,
                             const std::string& data_dir, bool embedded_allowed,
                             int max_context_tokens)
    : mark_(place_of(section, "source").mark), max_context_tokens_(max_context_tokens) {
  is_set_ = !is_parametric(settings->source);
  if (settings->source == "sharegpt" || settings->source == "sharegpt-like") {
    if (settings->max_prompt_tokens == 0) settings->max_prompt_tokens = 1024;
    if (settings->max_total_tokens == 0) settings->max_total_tokens = 2048;
  }
  if (max_context_tokens_ > 0 && is_set_ &&
      (settings->max_total_tokens == 0 || settings->max_total_tokens > max_context_tokens_)) {
    settings->max_total_tokens = max_context_tokens_;
  }
  settings_ = *settings;
  check(section);
  if (!is_set_) return;
  load_set(section, data_dir, embedded_allowed);
  if (settings_.prompt_mean > 0 || settings_.output_mean > 0) scale_to_means(section);
}

void LengthSampler::check(const ConfigNode& section) const {
  const LengthSettings& s = settings_;
  if (s.source == "uniform") {
    check_range(section, "prompt_range", s.prompt_range);
    check_range(section, "output_range", s.output_range);
  }
  if (s.source != "fixed") return;
  for (const auto& [key, tokens] : {std::pair("prompt", s.prompt), std::pair("output", s.output)}) {
    if (tokens == std::floor(tokens)) continue;
    throw SpecError(place_of(section, key).mark,
                    std::string("'") + key + "' of fixed lengths must be a whole number of tokens");
  }
  if (max_context_tokens_ > 0 && s.prompt + s.output > max_context_tokens_) {
    const char* longer = s.prompt >= s.output ? "prompt" : "output";
    throw SpecError(place_of(section, longer).mark,
                    "'prompt' and 'output' together exceed the model's context of " +
                        std::to_string(max_context_tokens_) + " tokens");
  }
}

void LengthSampler::load_set(const ConfigNode& section, const std::string& data_dir,
                             bool embedded_allowed) {
  const std::string& name = settings_.source;
  if (is_own_file(name)) {
    const std::string path = own_file_path(name, data_dir, place_of(section, "source").mark);
    load_rows(path, "");
    sources_.push_back(source_of("lengths", name, path, data_dir, "the user's own"));
    return;
  }
  const auto names = length_source_names();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    throw SpecError(place_of(section, "source").mark, "unknown lengths.source '" + name + "'; " +
                                                          suggest(name, names) +
                                                          ", or a file *.csv, *.csv.gz, *.jsonl");
  }
  const DataFile* file = find_data_file(name);
  if (file != nullptr) {
    if (const auto path = locate(*file, data_dir)) {
      load_rows(*path, remedy_for(*file));
      sources_.push_back(source_of("lengths", name, *path, data_dir, file->licence));
      return;
    }
  }
  const EmbeddedLengths* embedded = find_embedded(without_like(name));
  const bool allowed = embedded_allowed || file == nullptr;
  if (embedded == nullptr || !allowed) {
    throw SpecError(mark_, "length set '" + name + "' (" + file->path +
                               ") is not on this machine; " + remedy_for(*file));
  }
  model_.emplace_back(*embedded);
  sources_.push_back(embedded_source("lengths", std::string(embedded->name) + "-like"));
}

void LengthSampler::load_rows(const std::string& path, const std::string& remedy) {
  const RequestTrace trace = read_request_trace(
      path, remedy, RowsFor::kLengths,
      settings_.source == "alpaca-template" ? "input_tokens_with_template" : "input_tokens");
  for (const TraceRow& row : trace.rows) {
    const LengthPair pair{row.prompt_tokens, row.output_tokens};
    if (accepts(pair)) rows_.push_back(pair);
  }
  if (rows_.empty()) {
    throw SpecError(mark_, "no row of '" + settings_.source +
                               "' passes min_tokens, max_prompt_tokens and max_total_tokens");
  }
}

// Scaled lengths are rounded and cut to the context, so that their means do not grow as the scales
// do: these are found by trying.
void LengthSampler::scale_to_means(const ConfigNode& section) {
  if (settings_.scale_ratio != 1) {
    throw SpecError(place_of(section, "scale_ratio").mark,
                    "'scale_ratio' does not go with 'prompt_mean' and 'output_mean'");
  }
  std::vector<LengthPair> drawn;
  if (rows_.empty()) {
    RngStream rng(0, "means of lengths");
    for (int i = 0; i < kDrawsForMeans; ++i) drawn.push_back(draw_filtered(&rng));
  }
  const std::vector<LengthPair>& pairs = rows_.empty() ? drawn : rows_;
  double prompts = 0, outputs = 0;
  const auto off = [](double wanted, double mean) { return wanted > 0 ? wanted / mean : 1; };
  const auto is_met = [](double ratio) { return std::abs(ratio - 1) < 1e-3; };
  for (int tries = 0; tries < 100; ++tries) {
    prompts = outputs = 0;
    for (const LengthPair& pair : pairs) {
      const LengthPair sent = finish(pair);
      prompts += sent.prompt;
      outputs += sent.output;
    }
    prompts /= static_cast<double>(pairs.size());
    outputs /= static_cast<double>(pairs.size());
    const double prompt_off = off(settings_.prompt_mean, prompts);
    const double output_off = off(settings_.output_mean, outputs);
    if (is_met(prompt_off) && is_met(output_off)) return;
    prompt_scale_ *= prompt_off;
    output_scale_ *= output_off;
  }
  const char* key = is_met(off(settings_.prompt_mean, prompts)) ? "output_mean" : "prompt_mean";
  throw SpecError(place_of(section, key).mark,
                  std::string("'") + key + "' cannot be had: cut to the model's context of " +
                      std::to_string(max_context_tokens_) + " tokens, prompts have a mean of " +
                      std::to_string(whole(prompts)) + " and outputs of " +
                      std::to_string(whole(outputs)));
}

bool LengthSampler::is_scaled() const {
  return settings_.scale_ratio != 1 || settings_.prompt_mean > 0 || settings_.output_mean > 0;
}

bool LengthSampler::accepts(LengthPair raw) const {
  if (raw.prompt < settings_.min_tokens || raw.output < settings_.min_tokens) return false;
  if (settings_.max_prompt_tokens > 0 && raw.prompt > settings_.max_prompt_tokens) return false;
  const std::int64_t total = std::int64_t{raw.prompt} + raw.output;
  return settings_.max_total_tokens == 0 || total <= settings_.max_total_tokens;
}

LengthPair LengthSampler::draw_raw(RngStream* rng) const {
  const LengthSettings& s = settings_;
  if (!rows_.empty()) return rows_[static_cast<std::size_t>(rng->below(rows_.size()))];
  if (!model_.empty()) return model_.front().draw(rng);
  if (s.source == "uniform") {
    const auto draw = [&](const std::vector<double>& range) {
      const auto width = static_cast<std::uint64_t>(range[1] - range[0]);
      return static_cast<std::int32_t>(range[0]) + static_cast<std::int32_t>(rng->below(width));
    };
    const std::int32_t prompt = draw(s.prompt_range);
    return {prompt, draw(s.output_range)};
  }
  if (s.source == "fixed") return {whole(s.prompt), whole(s.output)};
  const double z1 = rng->normal();
  const double z2 =
      s.correlation * z1 + std::sqrt(1 - s.correlation * s.correlation) * rng->normal();
  const auto length = [&](double mean, double cv, double z) {
    if (s.source == "normal") return whole(mean * (1 + cv * z));
    const double variance = portable::log(1 + cv * cv);
    return whole(mean * portable::exp(std::sqrt(variance) * z - variance / 2));
  };
  return {length(s.prompt, s.prompt_cv, z1), length(s.output, s.output_cv, z2)};
}

LengthPair LengthSampler::draw_filtered(RngStream* rng) const {
  if (model_.empty()) return draw_raw(rng);  // rows are filtered; the others have no filter
  for (int i = 0; i < kMaxTries; ++i) {
    const LengthPair pair = draw_raw(rng);
    if (accepts(pair)) return pair;
  }
  throw SpecError(mark_, "hardly any length of '" + settings_.source +
                             "' passes min_tokens, max_prompt_tokens and max_total_tokens");
}

LengthPair LengthSampler::draw(RngStream* rng) const { return finish(draw_filtered(rng)); }

LengthPair LengthSampler::finish(LengthPair raw) const {
  double prompt = std::max(1, raw.prompt) * settings_.scale_ratio * prompt_scale_;
  double output = std::max(1, raw.output) * settings_.scale_ratio * output_scale_;
  const double most = max_context_tokens_ > 0 ? max_context_tokens_ : kMaxLength;
  const bool is_cut = prompt + output > most;
  if (is_cut) {  // keep the proportion
    const double shrink = most / (prompt + output);
    prompt = std::floor(prompt * shrink);
    output = std::floor(output * shrink);
  }
  LengthPair pair{whole(prompt), whole(output), is_cut};
  if (settings_.output_limit > 0) pair.output = std::min(pair.output, settings_.output_limit);
  const auto limit = static_cast<std::int32_t>(most);
  pair.prompt = std::min(pair.prompt, std::max(1, limit - 1));
  pair.output = std::max(1, std::min(pair.output, limit - pair.prompt));
  return pair;
}

std::int32_t LengthSampler::output_limit(LengthPair pair) const {
  if (settings_.output_limit < 0) return pair.output;
  std::int32_t most = max_context_tokens_ > 0 ? max_context_tokens_ : settings_.max_total_tokens;
  if (is_set_ && !is_scaled() && settings_.max_total_tokens > 0) {
    most = settings_.max_total_tokens;
  }
  std::int32_t left = most > 0 ? most - pair.prompt : pair.output;
  if (settings_.output_limit > 0) {
    left = most > 0 ? std::min(left, settings_.output_limit) : settings_.output_limit;
  }
  return std::max(pair.output, left);
}

}  // namespace servelab
