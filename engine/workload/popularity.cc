#include "engine/workload/popularity.h"

#include <cmath>
#include <numeric>

#include "engine/core/portable_math.h"
#include "engine/workload/function_trace.h"

namespace servelab {
namespace {

SourceMark mark_of(const ConfigNode& section, const std::string& key) {
  const ConfigNode* node = section.find(key);
  return node != nullptr ? node->mark : section.mark;
}

bool is_whole_hours(double seconds) { return seconds == 3600 * std::floor(seconds / 3600); }

}  // namespace

std::vector<double> popularity_weights(const PopularitySettings& settings, std::size_t items) {
  std::vector<double> weights(items, 1.0);
  const double n = static_cast<double>(items);
  const double exponent = settings.exponent;
  for (std::size_t i = 0; i < items; ++i) {
    const double rank = static_cast<double>(i + 1);
    if (settings.kind == "zipf") {
      weights[i] = portable::pow(rank, -exponent);
    } else if (settings.kind == "power-law") {
      // P(int(n U^(1/a)) = i) = ((i+1)/n)^a - (i/n)^a.
      weights[i] = portable::pow(rank / n, exponent) - portable::pow((rank - 1) / n, exponent);
    } else if (settings.kind == "geometric") {
      weights[i] = portable::exp(-static_cast<double>(i) * portable::log(exponent));
    } else if (settings.kind == "weights") {
      weights[i] = settings.weights[i % settings.weights.size()];
    }
  }
  return weights;
}

Popularity::Popularity(const WorkloadSettings& settings, const ConfigNode& section,
                       std::size_t items, std::uint64_t seed, const std::string& data_dir) {
  const PopularitySettings& p = settings.popularity;
  const bool needs_exponent = p.kind == "power-law" || p.kind == "geometric";
  if (needs_exponent && p.exponent <= 0) {
    throw SpecError(mark_of(section, "exponent"), "'exponent' must be above 0 for " + p.kind);
  }
  if (p.kind == "weights" && p.weights.empty()) {
    throw SpecError(mark_of(section, "kind"), "kind weights needs 'weights', a list of rates");
  }
  if (p.kind == "trace") {
    load_trace(settings, section, items, data_dir);
  } else {
    shares_ = popularity_weights(p, items);
  }
  const double sum = std::accumulate(shares_.begin(), shares_.end(), 0.0);
  if (!(sum > 0)) throw SpecError(mark_of(section, "weights"), "all adapters have weight 0");
  if (p.kind == "weights") weight_sum_ = sum;
  for (double& share : shares_) share /= sum;
  if (p.shuffle) {
    RngStream rng(seed, "popularity");
    rng.shuffle(&shares_);
  }
  if (p.kind != "round-robin") categorical_.emplace(shares_);
}

void Popularity::load_trace(const WorkloadSettings& settings, const ConfigNode& section,
                            std::size_t items, const std::string& data_dir) {
  const PopularitySettings& p = settings.popularity;
  FunctionTraceRequest request;
  request.name = p.trace.empty() ? settings.arrivals.trace : p.trace;
  request.mark = mark_of(section, p.trace.empty() ? "kind" : "trace");
  if (request.name.empty()) {
    throw SpecError(request.mark, "kind trace needs 'trace' here or in the arrivals");
  }
  request.role = "popularity";
  request.shares_only = true;
  request.data_dir = data_dir;
  request.embedded_allowed = settings.bounds.fallback == "embedded";
  request.functions = static_cast<std::size_t>(p.functions);
  if (p.trace.empty() || p.trace == settings.arrivals.trace) {
    request.start_s = settings.arrivals.start_s;
    request.window_s = settings.arrivals.window_s;
  }
  const bool hourly = is_whole_hours(request.start_s) && is_whole_hours(request.window_s);
  request.bin_s = hourly ? 3600 : 60;
  const FunctionTrace trace = load_function_trace(request);
  sources_.push_back(trace.source);
  const auto item_of = map_functions(trace, items, static_cast<std::size_t>(p.skewness), p.sort);
  shares_.assign(items, 0.0);
  for (std::size_t f = 0; f < trace.functions; ++f) shares_[item_of[f]] += trace.total(f);
}

std::uint32_t Popularity::draw(RngStream* rng) {
  if (!categorical_) return static_cast<std::uint32_t>(next_++ % shares_.size());
  return static_cast<std::uint32_t>(categorical_->draw(rng));
}

}  // namespace servelab
