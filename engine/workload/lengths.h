// Prompt and output lengths: fixed, drawn from a distribution, sampled from the rows of a real set,
// or drawn from the embedded model of a set.
#ifndef SERVELAB_WORKLOAD_LENGTHS_H_
#define SERVELAB_WORKLOAD_LENGTHS_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/config_node.h"
#include "engine/core/rng.h"
#include "engine/workload/data_files.h"
#include "engine/workload/embedded_stats.h"
#include "engine/workload/settings.h"

namespace servelab {

struct LengthPair {
  std::int32_t prompt = 1;
  std::int32_t output = 1;
  bool is_cut = false;  // the context was too short for it
};

// Draws pairs from an embedded joint distribution.
class EmbeddedLengthModel {
 public:
  explicit EmbeddedLengthModel(const EmbeddedLengths& lengths);
  LengthPair draw(RngStream* rng) const;

 private:
  using Table = std::array<double, kLengthQuantiles.size()>;
  struct Component {
    double weight;
    double correlation;
    double rest;  // of the second score, that does not follow from the first
    Table prompt_logs, output_logs;
  };
  double length_at(const Table& logs, double z) const;

  std::vector<Component> components_;
  Table scores_;  // normal scores of the knots
};

class LengthSampler {
 public:
  // Resolves the limits of `settings` in place (they become part of the effective settings) and
  // loads what is needed. `section` is the lengths map of the spec, for places in messages.
  // max_context_tokens 0: no limit.
  LengthSampler(LengthSettings* settings, const ConfigNode& section, const std::string& data_dir,
                bool embedded_allowed, int max_context_tokens);

  // The next pair, as the client sees it: filtered, scaled, cut. Draws from `rng`.
  LengthPair draw(RngStream* rng) const;
  // Applies scale and limits to a given pair, as of a replayed request: one that is too long for
  // the context is shrunk in proportion and marked, and an empty prompt counts as one token.
  LengthPair finish(LengthPair raw) const;
  std::int32_t output_limit(LengthPair pair) const;
  const std::vector<WorkloadSource>& sources() const { return sources_; }

 private:
  bool accepts(LengthPair raw) const;
  LengthPair draw_raw(RngStream* rng) const;
  LengthPair draw_filtered(RngStream* rng) const;
  void check(const ConfigNode& section) const;
  void load_set(const ConfigNode& section, const std::string& data_dir, bool embedded_allowed);
  void load_rows(const std::string& path, const std::string& remedy);
  void scale_to_means(const ConfigNode& section);
  bool is_scaled() const;

  LengthSettings settings_;
  SourceMark mark_;
  int max_context_tokens_;
  bool is_set_ = false;
  double prompt_scale_ = 1, output_scale_ = 1;
  std::vector<LengthPair> rows_;            // already filtered
  std::vector<EmbeddedLengthModel> model_;  // none or one
  std::vector<WorkloadSource> sources_;
};

// Every name that lengths.source takes.
std::vector<std::string> length_source_names();

}  // namespace servelab

#endif  // SERVELAB_WORKLOAD_LENGTHS_H_
