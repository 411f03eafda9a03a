#include "engine/cli/rank_processes.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string_view>

#include "engine/backend/ranks/rank_replica.h"
#include "engine/backend/ranks/worker.h"
#include "engine/cli/launch.h"
#include "engine/cli/ranges.h"
#include "engine/core/check.h"
#include "engine/core/config_node.h"
#include "engine/core/digest.h"
#include "engine/model/model_digest.h"
#include "engine/record/build_id.h"
#include "engine/run/point.h"
#include "engine/run/real_run.h"

namespace servelab {
namespace {

constexpr std::size_t kDigestDigits = 16;
constexpr int kEndedWithGroup = 1;

// What specs ask of ranks.
struct Needs {
  std::string backend;                        // the accelerator
  std::map<std::string, ModelConfig> models;  // by digest, those of points on several devices
  bool any() const { return !models.empty(); }
};

Needs needs_of(const std::vector<Spec>& specs) {
  Needs needs;
  for (const Spec& spec : specs) {
    for (const SweepPosition& position : spec.positions) {
      const ConfigNode* const backend = position.settings.find("backend");
      if (backend == nullptr || !is_real(backend->scalar)) continue;
      if (position.techniques.empty() || spec.seeds.empty()) continue;
      const TechniqueEntry& entry = spec.techniques[position.techniques.front()];
      const PointSettings point = resolve_point(spec, position, entry, spec.seeds.front());
      if (point.cluster.replicas * point.cluster.tensor_parallel == 1) continue;
      needs.backend = point.backend;
      needs.models.emplace(model_digest(point.model), point.model);
    }
  }
  return needs;
}

// The process's end, from whichever thread: a device may be waiting for a rank that is gone. What
// is on disk stays as after a crash, so that the next run goes on from it.
void end_process(const std::string& text) {
  std::string line = "servelab: error: " + text;
  std::replace(line.begin(), line.end(), '\n', ' ');
  line += '\n';
  if (::write(STDERR_FILENO, line.data(), line.size()) < 0) ::_exit(kEndedWithGroup);
  ::_exit(kEndedWithGroup);
}

ranks::Identity identity_of(const Needs& needs) {
  std::string all = needs.backend;
  for (const auto& [digest, model] : needs.models) all += ' ' + digest;
  return {build_id(), sha256_hex(all).substr(0, kDigestDigits)};
}

std::chrono::milliseconds patience_of(const RankOptions& options) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(options.timeout_s * 1e3));
}

ranks::GroupSecret secret_of(const RankOptions& options) {
  constexpr const char* kVariable = "SERVELAB_RANKS_SECRET";
  ranks::GroupSecret secret;
  secret.is_open = options.open;
  if (!options.secret.empty()) {
    secret.text = ranks::read_secret(options.secret);
  } else if (const char* const text = environment_variable(kVariable); text != nullptr) {
    if (std::string_view(text).size() < ranks::kShortestSecret) {
      throw SpecError(std::string(kVariable) + " has fewer than 16 bytes; make one with " +
                      "`openssl rand -hex 32`");
    }
    secret.text = text;
  }
  return secret;
}

// The models and devices that rank 0's commands find here.
ranks::WorkerDevice worker_device(const RankPlace& place, const Needs& needs) {
  const std::shared_ptr<const Accelerator> accelerator = find_accelerator(needs.backend);
  const auto find = [&needs](const ranks::OpenRank& open) -> const ModelConfig& {
    const auto found = needs.models.find(open.model);
    if (found == needs.models.end()) throw SpecError("has no model " + open.model);
    return found->second;
  };
  const auto device = [accelerator, place] {
    return ranks::rank_device(*accelerator, place.rank, place.local_rank);
  };
  ranks::WorkerDevice made;
  made.prepare = [find, device](const ranks::OpenRank& open) {
    device();
    open_weights(find(open));
  };
  made.name_group = [accelerator] { return accelerator->name_group(); };
  made.part = [find](const ranks::OpenRank& open) { return shard_model(find(open), open.shard); };
  made.open = [find, device, accelerator](const ranks::OpenRank& open) {
    DevicePlan plan = open.plan;
    plan.device = device();
    if (open.shares) plan.partitions = {accelerator->partition(plan.device)};
    const ModelConfig& model = find(open);
    return accelerator->make_rank(model, *open_weights(model), plan, open.shard, open.group);
  };
  return made;
}

int serve(const RankOptions& options, const RankPlace& place, const Needs& needs,
          const std::atomic<int>* stop) {
  ranks::WorkerSettings settings;
  settings.at = place.at;
  settings.rank = place.rank;
  settings.ranks = place.ranks;
  settings.identity = identity_of(needs);
  settings.secret = secret_of(options);
  settings.patience = patience_of(options);
  settings.device = worker_device(place, needs);
  settings.stop = stop;
  const std::string who = "rank " + std::to_string(place.rank) + ": ";
  settings.on_failure = [who](const std::string& text) { end_process(who + text); };
  try {
    return ranks::serve_rank(settings);
  } catch (const SpecError& problem) {
    throw SpecError(who + problem.what());
  }
}

int lead(const RankOptions& options, const RankPlace& place, const Needs& needs,
         std::atomic<int>* stop, const std::function<int(ranks::RankGroup*)>& run) {
  ranks::GroupSettings settings;
  settings.at = place.at;
  settings.ranks = place.ranks;
  settings.local_rank = place.local_rank;
  settings.identity = identity_of(needs);
  settings.secret = secret_of(options);
  settings.patience = patience_of(options);
  settings.stop = stop;
  settings.on_failure = end_process;
  settings.on_signal = [stop](int number) {
    int none = 0;
    stop->compare_exchange_strong(none, number);
  };
  ranks::RankGroup group(std::move(settings));
  const int code = run(&group);
  group.goodbye(code);
  return code;
}

}  // namespace

void declare_ranks(CLI::App* run, RankOptions* options) {
  run->add_option(
         "--ranks", options->mode,
         "where the ranks of a replica on several devices are: threads of this process, or "
         "the processes that torchrun, srun or mpirun started; auto: processes where a "
         "launcher started several and a point takes several devices")
      ->check(CLI::IsMember({"auto", "threads", "processes"}))
      ->capture_default_str();
  run->add_option("--ranks-at", options->at,
                  "HOST:PORT where rank 0 meets the others; default: as the launcher says");
  run->add_option("--ranks-timeout", options->timeout_s,
                  "seconds to wait for the other ranks to come, and for one to answer")
      ->check(number_in(0.1, 86400.0))
      ->capture_default_str();
  run->add_option("--ranks-secret", options->secret,
                  "file with a secret by which ranks prove that they belong; default: "
                  "$SERVELAB_RANKS_SECRET, else none: ranks of one machine only");
  run->add_flag("--ranks-open", options->open,
                "without a secret too, let any machine that reaches rank 0 pose as a rank");
}

int with_ranks(const RankOptions& options, const std::vector<Spec>& specs, bool is_here,
               std::atomic<int>* stop, const std::function<int(ranks::RankGroup* group)>& run) {
  const bool is_asked_for = options.mode == "processes";
  if (is_asked_for && !is_here) {
    throw SpecError(
        "--ranks processes goes with points that are computed here; leave out "
        "--executor and --emit-jobs");
  }
  if (options.mode == "threads" || !is_here) return run(nullptr);
  const Needs needs = needs_of(specs);
  if (!needs.any() && !is_asked_for) return run(nullptr);
  const std::optional<RankPlace> place = find_rank_place(environment_variable, options.at);
  if (is_asked_for && !place) {
    throw SpecError(
        "--ranks processes: no launcher has started this process; start it with "
        "torchrun, srun or mpirun");
  }
  if (!place || place->ranks == 1) return run(nullptr);
  if (!needs.any()) {
    throw SpecError(
        "--ranks processes: no point takes several devices (an engine, with "
        "cluster.replicas * cluster.tensor_parallel above 1)");
  }
  return place->rank == 0 ? lead(options, *place, needs, stop, run)
                          : serve(options, *place, needs, stop);
}

}  // namespace servelab
