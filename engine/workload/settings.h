// The `workload:` section of a spec. Each map of the section is one struct.
#ifndef SERVELAB_WORKLOAD_SETTINGS_H_
#define SERVELAB_WORKLOAD_SETTINGS_H_

#include <string>
#include <vector>

#include "engine/core/params.h"

namespace servelab {

// Those that registered themselves (arrival_process.h).
std::vector<std::string> arrival_process_names();

struct WorkloadBounds {
  std::int64_t requests = 0;
  double requests_per_rate = 0;
  double duration_s = 0;
  int models = 1;
  std::string fallback = "embedded";

  void fields(ParamFields& f) {
    f.add("requests", &requests, "how many requests; 0 for no bound").range(0, 1e9);
    f.add("requests_per_rate", &requests_per_rate,
          "instead of 'requests': this many seconds' worth of the rate, in requests")
        .range(0, 1e9);
    f.add("duration_s", &duration_s, "arrivals end here, in seconds; 0 for no bound").range(0, 1e9);
    f.add("models", &models, "base models; adapter i belongs to model i mod models")
        .range(1, 65535);
    f.add("fallback", &fallback, "what stands in for a trace that is not on this machine")
        .one_of({"embedded", "error"});
  }
};

struct AdapterSettings {
  std::int64_t count = 8;
  std::vector<double> ranks = {8};
  std::vector<double> rank_weights;
  std::string assign = "cyclic";
  double base_share = 0;

  void fields(ParamFields& f) {
    f.add("count", &count, "how many adapters; 0 sends everything to the base models")
        .range(0, 10e6);
    f.add("ranks", &ranks, "LoRA ranks, dealt out by 'assign'").range(1, 65536);
    f.add("rank_weights", &rank_weights, "probability of each rank (assign: random)")
        .range(0, 1e12);
    f.add("assign", &assign,
          "cyclic: rank i mod n; shuffled: the same, in random order; random: independent draws")
        .one_of({"cyclic", "shuffled", "random"});
    f.add("base_share", &base_share,
          "share of requests that use no adapter, where no trace says it")
        .range(0, 1);
  }
};

struct ArrivalSettings {
  std::string process = "poisson";
  double rate_per_s = 0;  // resolved by the generated processes, so that results record it
  double cv = 1;
  std::string gaps = "gamma";
  bool per_adapter = false;
  std::string trace;
  double interval_s = 3600;
  double start_s = 0;
  double window_s = 0;
  double speed = 1;
  std::string origin = "first";
  bool correlated = false;
  double update_s = 300;
  double factor = 2;
  double max_factor = 4;

  void fields(ParamFields& f) {
    f.add("process", &process, "how requests arrive").one_of(arrival_process_names());
    f.add("rate", &rate_per_s,
          "mean requests per second over all adapters; unset or 0: the trace's own rate times "
          "'speed' (trace-rate, servegen, replay), else the sum of popularity.weights, else 1")
        .range(0, 1e7);
    f.add("cv", &cv, "coefficient of variation of the gaps (gamma, lognormal, weibull)")
        .range(0.01, 100);
    f.add("gaps", &gaps, "kind of gaps inside trace-rate and trace-shares")
        .one_of({"gamma", "lognormal", "weibull", "even"});
    f.add("per_adapter", &per_adapter, "every adapter has its own independent process");
    f.add("trace", &trace, "the trace of trace-rate, trace-shares, servegen and replay");
    f.add("interval_s", &interval_s, "trace-shares: length of an interval of the trace")
        .range(1, 1e7);
    f.add("start_s", &start_s, "first second of the trace that is used").range(0, 1e9);
    f.add("window_s", &window_s, "how much of the trace is used; 0 for all").range(0, 1e9);
    f.add("speed", &speed,
          "trace seconds per simulated second (trace-rate, servegen, replay), without 'rate'")
        .range(1e-6, 1e6);
    f.add("origin", &origin,
          "replay: times count from the trace's first request, or from zero as they are written")
        .one_of({"first", "zero"});
    f.add("correlated", &correlated,
          "trace-shares: every adapter uses the same draws, as dLoRA's artifact does");
    f.add("update_s", &update_s, "switching: time between changes of an adapter's process")
        .range(1e-3, 1e9);
    f.add("factor", &factor, "switching: the rate is multiplied or divided by this").range(1, 100);
    f.add("max_factor", &max_factor, "switching: limit of the rate over its start, both ways")
        .range(1, 1e6);
  }
};

struct PopularitySettings {
  std::string kind = "uniform";
  double exponent = 1;
  std::string trace;
  std::vector<double> weights;
  bool shuffle = false;
  std::int64_t functions = 0;
  std::int64_t skewness = 1;
  bool sort = true;

  void fields(ParamFields& f) {
    f.add("kind", &kind,
          "uniform; zipf: (i+1)^-exponent; power-law: S-LoRA's int(U^(1/exponent) n); geometric: "
          "exponent^-i; weights: a cyclic list; trace; round-robin: request i uses adapter i mod n")
        .one_of({"uniform", "zipf", "power-law", "geometric", "weights", "trace", "round-robin"});
    f.add("exponent", &exponent, "of zipf, power-law and geometric").range(0, 100);
    f.add("trace", &trace, "of kind trace; empty: the trace of the arrivals");
    f.add("weights", &weights, "relative rates, repeated over the adapters").range(0, 1e12);
    f.add("shuffle", &shuffle, "deal the shares out in random order");
    f.add("functions", &functions,
          "functions of the trace, resampled along its popularity curve; 0: as many as it has")
        .range(0, 1e6);
    // The paper (7.1) and the artifact (map_stride in Trace.map_model) do the same.
    f.add("skewness", &skewness, "dLoRA's: runs of this many functions go to one adapter in turn")
        .range(1, 1e6);
    f.add("sort", &sort, "most invoked functions first before they are mapped");
  }
};

struct LengthSettings {
  std::string source = "sharegpt";
  double prompt = 128;
  double output = 128;
  double prompt_cv = 1;
  double output_cv = 1;
  double correlation = 0;
  std::vector<double> prompt_range = {8, 512};
  std::vector<double> output_range = {8, 512};
  int min_tokens = 4;
  int max_prompt_tokens = 0;
  int max_total_tokens = 0;
  double prompt_mean = 0;
  double output_mean = 0;
  double scale_ratio = 1;
  int output_limit = 0;

  void fields(ParamFields& f) {
    f.add("source", &source,
          "fixed, uniform, normal, lognormal, trace (of a replay), or a set: sharegpt, "
          "sharegpt-8k, alpaca, alpaca-template, bwb, arxiv, azure-llm-conv, azure-llm-code, "
          "mooncake-conversation, mooncake-synthetic, burstgpt, or a file (.csv, .csv.gz, .jsonl)");
    f.add("prompt", &prompt, "whole tokens (fixed) or their mean (normal, lognormal)")
        .range(1, 1e7);
    f.add("output", &output, "whole tokens (fixed) or their mean (normal, lognormal)")
        .range(1, 1e7);
    f.add("prompt_cv", &prompt_cv, "of normal and lognormal").range(0, 100);
    f.add("output_cv", &output_cv, "of normal and lognormal").range(0, 100);
    f.add("correlation", &correlation, "of the two normal scores (normal, lognormal)").range(-1, 1);
    f.add("prompt_range", &prompt_range, "uniform: [low, high), whole numbers").range(1, 1e7);
    f.add("output_range", &output_range, "uniform: [low, high), whole numbers").range(1, 1e7);
    f.add("min_tokens", &min_tokens, "sets: shorter prompts or outputs are not used").range(1, 1e7);
    f.add("max_prompt_tokens", &max_prompt_tokens,
          "sets: longer prompts are not used; 0: 1024 for sharegpt, else no limit")
        .range(0, 1e8);
    f.add("max_total_tokens", &max_total_tokens,
          "sets: longer pairs are not used; 0: 2048 for sharegpt, else the model's context")
        .range(0, 1e8);
    f.add("prompt_mean", &prompt_mean,
          "sets: prompts are scaled so that they have this mean as they are sent; 0: as they are")
        .range(0, 1e7);
    f.add("output_mean", &output_mean, "likewise, outputs").range(0, 1e7);
    f.add("scale_ratio", &scale_ratio,
          "both lengths are scaled by this, up to the model's context (dLoRA 7.4)")
        .range(1e-3, 1e3);
    f.add("output_limit", &output_limit,
          "the client's max_tokens, which also cuts the output; 0: what the limits leave after the "
          "prompt; -1: the true length, as benchmarks that ignore the end token send")
        .range(-1, 1e8);
  }
};

struct WorkloadSettings {
  WorkloadBounds bounds;
  AdapterSettings adapters;
  ArrivalSettings arrivals;
  PopularitySettings popularity;
  LengthSettings lengths;
};

}  // namespace servelab

#endif  // SERVELAB_WORKLOAD_SETTINGS_H_
