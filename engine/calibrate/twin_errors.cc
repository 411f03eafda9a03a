#include "engine/calibrate/twin_errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "engine/core/check.h"
#include "engine/spec/spec_text.h"

namespace servelab {
namespace {

constexpr const char* kAllRegimes = "all";

std::string number(double value, const char* unit_format) {
  return std::isfinite(value) ? fmt::format(fmt::runtime(unit_format), value) : "-";
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

// Means that leave NaN out.
class Mean {
 public:
  void add(double value) {
    if (!std::isfinite(value)) return;
    sum_ += value;
    ++count_;
  }
  double value() const {
    return count_ > 0 ? sum_ / static_cast<double>(count_)
                      : std::numeric_limits<double>::quiet_NaN();
  }

 private:
  double sum_ = 0;
  std::size_t count_ = 0;
};

}  // namespace

const char* name(LoadRegime regime) {
  switch (regime) {
    case LoadRegime::kLow:
      return "low";
    case LoadRegime::kHigh:
      return "high";
    case LoadRegime::kSaturated:
      return "saturated";
  }
  return "";
}

LoadRegime regime_of(const Outcome& engine, double incoming_tokens_per_s) {
  constexpr double kStarved = 0.9;  // the paper's definition (6)
  constexpr double kBusy = 0.5;
  if (engine.tokens_per_s < kStarved * incoming_tokens_per_s) return LoadRegime::kSaturated;
  return engine.busy_share < kBusy ? LoadRegime::kLow : LoadRegime::kHigh;
}

double symmetric_error(double a, double b) {
  if (a == 0 && b == 0) return 0;
  return 100 * std::abs(a - b) / (std::abs(a) + std::abs(b));
}

double relative_error(double measured, double twin) {
  return measured == 0 && twin == 0 ? 0 : 100 * std::abs(twin / measured - 1);
}

ErrorLimits parse_limits(const std::string& text) {
  ErrorLimits limits;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    const std::string entry = text.substr(start, end - start);
    const std::size_t equals = entry.find('=');
    const std::string key = entry.substr(0, equals);
    char* stop = nullptr;
    const char* digits = equals == std::string::npos ? "" : entry.c_str() + equals + 1;
    const double value = std::strtod(digits, &stop);
    if (*digits == '\0' || *stop != '\0' || !(value >= 0 && value <= 100)) {
      throw SpecError("--limits: " + in_quotes(entry) +
                      " is not a name and a percentage such as throughput=5,itl=10,ttft=20,"
                      "latency=15");
    }
    if (key == "throughput") {
      limits.throughput = value;
    } else if (key == "itl") {
      limits.itl = value;
    } else if (key == "ttft") {
      limits.ttft = value;
    } else if (key == "latency") {
      limits.latency = value;
    } else {
      throw SpecError("--limits: unknown " + in_quotes(key) + "; " +
                      suggest(key, {"throughput", "itl", "ttft", "latency"}));
    }
    start = end + 1;
  }
  return limits;
}

namespace {

MetricErrors mean_errors(const std::vector<const ValidatedPoint*>& points,
                         double (*error)(double measured, double twin)) {
  const auto mean = [&](double Outcome::*metric) {
    Mean of;
    for (const ValidatedPoint* p : points) of.add(error(p->engine.*metric, p->twin.*metric));
    return of.value();
  };
  return {mean(&Outcome::tokens_per_s), mean(&Outcome::itl_s), mean(&Outcome::ttft_s),
          mean(&Outcome::latency_s)};
}

}  // namespace

std::vector<RegimeErrors> regime_errors(const std::vector<ValidatedPoint>& points,
                                        const ErrorLimits& limits) {
  std::vector<std::string> variants;
  for (const ValidatedPoint& point : points) {
    if (std::find(variants.begin(), variants.end(), point.variant) == variants.end()) {
      variants.push_back(point.variant);
    }
  }
  std::vector<RegimeErrors> all;
  for (const std::string& variant : variants) {
    for (const char* regime : {"low", "high", "saturated", kAllRegimes}) {
      RegimeErrors errors;
      errors.variant = variant;
      errors.regime = regime;
      std::vector<const ValidatedPoint*> of_regime;
      for (const ValidatedPoint& p : points) {
        if (p.variant != variant || !p.problem.empty()) continue;
        const std::string own = name(regime_of(p.engine, p.incoming_tokens_per_s));
        if (errors.regime != kAllRegimes && errors.regime != own) continue;
        of_regime.push_back(&p);
        errors.is_judged = p.is_judged;
      }
      errors.points = of_regime.size();
      if (errors.points == 0) continue;
      errors.smape = mean_errors(of_regime, symmetric_error);
      errors.relative = mean_errors(of_regime, relative_error);
      // NaN (no value anywhere) is not within a limit; a latency need not be known.
      errors.is_supported = errors.smape.throughput <= limits.throughput &&
                            errors.smape.itl <= limits.itl && errors.smape.ttft <= limits.ttft &&
                            !(errors.smape.latency > limits.latency);
      all.push_back(errors);
    }
  }
  return all;
}

double Agreement::f1() const {
  const int wrong = only_measured + only_twin;
  return both + wrong > 0 ? 2.0 * both / (2 * both + wrong)
                          : std::numeric_limits<double>::quiet_NaN();
}

namespace {

void count(bool measured, bool twin, Agreement* agreement) {
  (measured ? (twin ? agreement->both : agreement->only_measured)
            : (twin ? agreement->only_twin : agreement->neither)) += 1;
}

}  // namespace

Agreement starved(const std::vector<ValidatedPoint>& points, const std::string& variant) {
  Agreement agreement;
  for (const ValidatedPoint& p : points) {
    if (p.variant != variant || !p.problem.empty()) continue;
    count(regime_of(p.engine, p.incoming_tokens_per_s) == LoadRegime::kSaturated,
          regime_of(p.twin, p.incoming_tokens_per_s) == LoadRegime::kSaturated, &agreement);
  }
  return agreement;
}

Agreement out_of_memory(const std::vector<ValidatedPoint>& points, const std::string& variant) {
  Agreement agreement;
  for (const ValidatedPoint& p : points) {
    if (p.variant == variant) count(p.engine.out_of_memory, p.twin.out_of_memory, &agreement);
  }
  return agreement;
}

double spearman(const std::vector<double>& a, const std::vector<double>& b) {
  SL_CHECK(a.size() == b.size(), "ranks of two lists of one length");
  const auto ranks = [](const std::vector<double>& values) {
    std::vector<double> ranks;
    for (const double value : values) {
      const auto below = std::count_if(values.begin(), values.end(),
                                       [value](double other) { return other < value; });
      const auto equal = std::count(values.begin(), values.end(), value);
      ranks.push_back(static_cast<double>(below) + static_cast<double>(equal - 1) / 2.0);
    }
    return ranks;
  };
  const std::vector<double> x = ranks(a), y = ranks(b);
  const double middle = (static_cast<double>(x.size()) - 1) / 2;  // the mean rank
  double xy = 0, xx = 0, yy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - middle) * (y[i] - middle);
    xx += (x[i] - middle) * (x[i] - middle);
    yy += (y[i] - middle) * (y[i] - middle);
  }
  return xy / std::sqrt(xx * yy);
}

std::vector<RankCorrelation> rank_correlations(const std::vector<ValidatedPoint>& points) {
  constexpr std::size_t kFewest = 3;
  struct Throughput {
    double measured = 0, twin = 0, rows = 0;
  };
  // By key and source, then what else the rows set, then the key's value.
  using Series = std::map<std::string, Throughput>;
  std::vector<std::pair<RankCorrelation, std::map<std::string, Series>>> found;
  for (const ValidatedPoint& p : points) {
    if (!p.problem.empty() || p.variant.rfind(kTwin, 0) != 0) continue;
    for (const auto& setting : p.settings) {
      const std::string& key = setting.first;
      std::string others;
      for (const auto& [other, its] : p.settings) {
        if (other != key) others += other + "=" + its + " ";
      }
      auto at = std::find_if(found.begin(), found.end(), [&](const auto& entry) {
        return entry.first.key == key && entry.first.source == p.source;
      });
      if (at == found.end()) {
        found.emplace_back();
        at = std::prev(found.end());
        at->first.key = key;
        at->first.source = p.source;
      }
      Throughput& sum = at->second[others][setting.second];
      sum.measured += p.engine.tokens_per_s;
      sum.twin += p.twin.tokens_per_s;
      ++sum.rows;
    }
  }
  std::vector<RankCorrelation> all;
  for (auto& [correlation, by_others] : found) {
    correlation.least = 1;
    for (const auto& [others, series] : by_others) {
      std::vector<double> measured, twin;
      for (const auto& [value, sum] : series) {
        measured.push_back(sum.measured / sum.rows);
        twin.push_back(sum.twin / sum.rows);
      }
      const double rho = spearman(measured, twin);
      if (measured.size() < kFewest || std::isnan(rho)) continue;
      ++correlation.series;
      correlation.values += measured.size();
      correlation.mean += rho;
      correlation.least = std::min(correlation.least, rho);
    }
    if (correlation.series == 0) continue;
    correlation.mean /= static_cast<double>(correlation.series);
    all.push_back(correlation);
  }
  return all;
}

std::string errors_table(const std::vector<RegimeErrors>& errors) {
  const auto line = [](const RegimeErrors& e, const MetricErrors& of) {
    return fmt::format("{:34} {:10} {:>6} {:>10} {:>7} {:>7} {:>7}", e.variant, e.regime, e.points,
                       number(of.throughput, "{:.2f}"), number(of.itl, "{:.2f}"),
                       number(of.ttft, "{:.2f}"), number(of.latency, "{:.2f}"));
  };
  std::string text = fmt::format("{:34} {:10} {:>6} {:>10} {:>7} {:>7} {:>7}\n", "SMAPE %, twin",
                                 "regime", "points", "throughput", "ITL", "TTFT", "latency");
  for (const RegimeErrors& e : errors) {
    text += line(e, e.smape) + (e.is_supported ? "\n" : "  unsupported\n");
  }
  text += "mean of |twin / measured - 1| in %\n";
  for (const RegimeErrors& e : errors) {
    if (e.regime == kAllRegimes) text += line(e, e.relative) + "\n";
  }
  return text;
}

std::string points_table(const std::vector<ValidatedPoint>& points) {
  std::string text = fmt::format("{:9} {:>5} {:>15} {:>15} {:>17} {:>15}  {}\n", "regime", "busy",
                                 "tokens/s", "ITL ms", "TTFT ms", "latency s", "engine / twin of");
  for (const ValidatedPoint& p : points) {
    if (!p.problem.empty()) {
      text += fmt::format("{:9} {} {}: {}\n", "INVALID", p.label, p.variant, p.problem);
      continue;
    }
    const auto pair = [](double a, double b, double scale, const char* format) {
      return number(a * scale, format) + " / " + number(b * scale, format);
    };
    text +=
        fmt::format("{:9} {:>4.0f}% {:>15} {:>15} {:>17} {:>15}  {} {}\n",
                    name(regime_of(p.engine, p.incoming_tokens_per_s)), 100 * p.engine.busy_share,
                    pair(p.engine.tokens_per_s, p.twin.tokens_per_s, 1, "{:.0f}"),
                    pair(p.engine.itl_s, p.twin.itl_s, 1e3, "{:.2f}"),
                    pair(p.engine.ttft_s, p.twin.ttft_s, 1e3, "{:.1f}"),
                    pair(p.engine.latency_s, p.twin.latency_s, 1, "{:.2f}"), p.label, p.variant);
  }
  return text;
}

std::string points_csv(const std::vector<ValidatedPoint>& points) {
  std::string text =
      "label,variant,judged,regime,incoming_tokens_per_s,engine_busy_share,engine_tokens_per_s,"
      "twin_tokens_per_s,engine_itl_s,twin_itl_s,engine_ttft_s,twin_ttft_s,engine_latency_s,"
      "twin_latency_s,problem\n";
  for (const ValidatedPoint& p : points) {
    text += fmt::format(
        "{},{},{},{},{:.9g},{:.9g},{:.9g},{:.9g},{:.9g},{:.9g},{:.9g},{:.9g},{:.9g},{:.9g},{}\n",
        quoted(p.label), quoted(p.variant), p.is_judged ? 1 : 0,
        name(regime_of(p.engine, p.incoming_tokens_per_s)), p.incoming_tokens_per_s,
        p.engine.busy_share, p.engine.tokens_per_s, p.twin.tokens_per_s, p.engine.itl_s,
        p.twin.itl_s, p.engine.ttft_s, p.twin.ttft_s, p.engine.latency_s, p.twin.latency_s,
        quoted(p.problem));
  }
  return text;
}

std::string errors_csv(const std::vector<RegimeErrors>& errors) {
  std::string text =
      "variant,judged,regime,points,throughput_smape,itl_smape,ttft_smape,latency_smape,"
      "supported\n";
  for (const RegimeErrors& e : errors) {
    text += fmt::format("{},{},{},{},{:.6g},{:.6g},{:.6g},{:.6g},{}\n", quoted(e.variant),
                        e.is_judged ? 1 : 0, e.regime, e.points, e.smape.throughput, e.smape.itl,
                        e.smape.ttft, e.smape.latency, e.is_supported ? 1 : 0);
  }
  return text;
}

std::string ranks_table(const std::vector<RankCorrelation>& all) {
  std::string text;
  for (const RankCorrelation& c : all) {
    text += fmt::format(
        "Spearman {:6.3f}, least {:6.3f}: throughput by {} ({} series, {} values){}\n", c.mean,
        c.least, c.key, c.series, c.values, c.source.empty() ? "" : " " + c.source);
  }
  return text;
}

std::string agreement_table(const std::vector<ValidatedPoint>& points) {
  std::string text;
  std::vector<std::string> seen;
  for (const ValidatedPoint& p : points) {
    if (std::find(seen.begin(), seen.end(), p.variant) != seen.end()) continue;
    seen.push_back(p.variant);
    const auto line = [&](const char* what, const Agreement& a) {
      if (a.both + a.only_measured + a.only_twin == 0) return;
      text += fmt::format(
          "{:34} {:13} F1 {:.3f} ({} in both, {} measured only, {} in the twin only, {} neither)\n",
          p.variant, what, a.f1(), a.both, a.only_measured, a.only_twin, a.neither);
    };
    line("starved", starved(points, p.variant));
    line("out of memory", out_of_memory(points, p.variant));
  }
  return text;
}

}  // namespace servelab
