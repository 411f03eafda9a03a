#include "engine/workload/settings_check.h"

#include <algorithm>
#include <string>
#include <vector>

#include "engine/workload/arrival_process.h"

namespace servelab {
namespace {

using Names = std::vector<std::string>;

// A key, and the values of its section's selector (process, kind, source) that use it.
struct Use {
  std::string key;
  Names selectors;
};

bool contains(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string joined(const Names& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// Whether `settings` has the key at another value than its default.
template <class T>
bool is_changed(const T& settings, const std::string& key) {
  T given = settings;
  T defaults;
  const ConfigNode given_values = effective_params(&given);
  const ConfigNode default_values = effective_params(&defaults);
  return canonical_json(*given_values.find(key)) != canonical_json(*default_values.find(key));
}

[[noreturn]] void refuse(const ConfigNode& section, const std::string& key,
                         const std::string& selected, const std::string& others) {
  throw SpecError(section.find(key)->mark,
                  "'" + key + "' has no effect with " + selected + "; remove it" + others);
}

// `selector` is the key that decides, `group` the name by which `uses` call its value.
template <class T>
void check_uses(const ConfigNode& section, const T& settings, const std::string& selector,
                const std::string& value, const std::string& group, const std::vector<Use>& uses) {
  for (const Use& use : uses) {
    if (section.find(use.key) == nullptr || contains(use.selectors, group)) continue;
    if (!is_changed(settings, use.key)) continue;
    const char* which = use.selectors.size() > 1 ? " or use one of " : " or use ";
    refuse(section, use.key, selector + ": " + value, which + joined(use.selectors));
  }
}

void check_arrivals(const WorkloadSettings& all, const ConfigNode& section) {
  const ArrivalSettings& settings = all.arrivals;
  const PopularitySettings& popularity = all.popularity;
  const bool popularity_reads_trace =
      popularity.kind == "trace" &&
      (popularity.trace.empty() || popularity.trace == settings.trace);
  std::vector<Use> uses;
  ArrivalSettings any;
  ParamFields fields;
  any.fields(fields);
  for (const std::string& key : fields.names()) {
    if (key == "process") continue;
    Use use{key, {}};
    for (const std::string& name : arrival_process_names()) {
      if (contains(Registry<ArrivalKind>::instance().make(name)->uses(), key)) {
        use.selectors.push_back(name);
      }
    }
    const bool is_traced = key == "trace" || key == "start_s" || key == "window_s";
    if (is_traced && popularity_reads_trace) use.selectors.push_back(settings.process);
    uses.push_back(std::move(use));
  }
  check_uses(section, settings, "process", settings.process, settings.process, uses);
  const bool has_gaps = settings.process == "trace-rate" || settings.process == "trace-shares";
  const bool has_cv = section.find("cv") != nullptr && is_changed(settings, "cv");
  if (has_gaps && settings.gaps == "even" && has_cv) {
    refuse(section, "cv", "gaps: even", " or use one of gamma, lognormal, weibull");
  }
  if (settings.rate_per_s > 0 && settings.speed != 1) {
    throw SpecError(section.find("speed")->mark,
                    "'rate' and 'speed' exclude each other: 'rate' rescales the trace, 'speed' "
                    "multiplies the trace's own rate; remove one");
  }
}

void check_popularity_uses(const WorkloadSettings& all, const ConfigNode& section) {
  const PopularitySettings& settings = all.popularity;
  Names resampled = {"trace"};
  if (all.arrivals.process == "trace-rate") resampled.push_back(settings.kind);
  const std::vector<Use> uses = {
      {"exponent", {"zipf", "power-law", "geometric"}},
      {"trace", {"trace"}},
      {"weights", {"weights"}},
      {"shuffle", {"zipf", "power-law", "geometric", "weights", "trace"}},
      {"functions", resampled},
      {"skewness", {"trace"}},
      {"sort", {"trace"}},
  };
  check_uses(section, settings, "kind", settings.kind, settings.kind, uses);
}

void check_lengths(const LengthSettings& settings, const ConfigNode& section) {
  const Names parametric = {"fixed", "uniform", "normal", "lognormal", "trace"};
  const std::string sets = "a set such as sharegpt";
  const std::string group = contains(parametric, settings.source) ? settings.source : sets;
  const std::vector<Use> uses = {
      {"prompt", {"fixed", "normal", "lognormal"}},
      {"output", {"fixed", "normal", "lognormal"}},
      {"prompt_cv", {"normal", "lognormal"}},
      {"output_cv", {"normal", "lognormal"}},
      {"correlation", {"normal", "lognormal"}},
      {"prompt_range", {"uniform"}},
      {"output_range", {"uniform"}},
      {"min_tokens", {sets}},
      {"max_prompt_tokens", {sets}},
      {"max_total_tokens", {sets}},
      {"prompt_mean", {sets}},
      {"output_mean", {sets}},
  };
  check_uses(section, settings, "source", settings.source, group, uses);
}

}  // namespace

void refuse_settings_without_effect(const WorkloadSettings& settings, const ConfigNode& arrivals,
                                    const ConfigNode& popularity, const ConfigNode& lengths) {
  check_arrivals(settings, arrivals);
  check_popularity_uses(settings, popularity);
  check_lengths(settings.lengths, lengths);
}

}  // namespace servelab
