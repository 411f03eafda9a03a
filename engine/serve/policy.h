// The two interfaces of a technique, and how a technique registers itself.
#ifndef SERVELAB_SERVE_POLICY_H_
#define SERVELAB_SERVE_POLICY_H_

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/core/params.h"
#include "engine/core/registry.h"
#include "engine/serve/deployment.h"
#include "engine/serve/engine_settings.h"
#include "engine/serve/plan.h"
#include "engine/serve/view.h"

namespace servelab {

// A step that has just ended, with those before it that repeated the same plan and were not
// reported yet.
struct StepReport {
  std::int64_t steps = 1;         // that this is about
  std::int64_t repeats = 0;       // of those: started without asking the policy
  std::span<const Slice> slices;  // as planned: without those that StepPlan::decode_all means
  std::span<const RequestId> finished;
  Exec exec = Exec::kUnmerged;
  ModelId model{};
  AdapterId merged = kBaseModel;
  TimeNs duration = 0;     // start of execution to end, of all of them
  TimeNs switch_time = 0;  // of which: merging and unmerging
};

// A value that a policy wants recorded over time; `value` is read once per series bin.
struct Gauge {
  const char* name;
  const double* value;
};

class ReplicaPolicy {
 public:
  virtual ~ReplicaPolicy() = default;

  // Decides what the replica starts now. `out` comes cleared and is reused. Returns false when
  // there is nothing to start: asked again when something changes (an arrival, a finished step or
  // load). After a start it is asked again while the backend takes more steps in flight.
  virtual bool plan(const ReplicaView& view, StepPlan* out) = 0;

  virtual void on_step_done(const ReplicaView& /*view*/, const StepReport& /*report*/) {}
  virtual std::vector<Gauge> gauges() const { return {}; }
};

struct Migration {
  RequestId request;
  ReplicaId to;
};

// An adapter that a replica should begin to load now.
struct AdapterCopy {
  AdapterId adapter;
  ReplicaId to;
};

// What a look at the whole cluster led to.
struct Rebalance {
  enum class Outcome : std::uint8_t {
    kBalanced,  // nothing to decide
    kDecided,   // a decision was made; it may be to leave everything where it is
    kFailed,    // no decision could be found; everything stays where it is, whatever is listed
  };
  Outcome outcome = Outcome::kBalanced;
  // What making the decision takes: it is carried out this much later. Virtual time is charged
  // this; a wall clock what it really took, if that is longer.
  TimeNs decision_time = 0;
  std::vector<AdapterCopy> loads;
  std::vector<Migration> migrations;
};

// A request that has just ended.
struct FinishedRequest {
  RequestId id;
  ModelId model;
  AdapterId adapter;
  ReplicaId replica;
  int output_tokens = 0;
  TimeNs execution = 0;  // from its first step's submission to its last token, pauses included
};

class ClusterPolicy {
 public:
  static constexpr const char* kRegistryName = "cluster policy";
  virtual ~ClusterPolicy() = default;

  virtual std::string summary() const { return {}; }  // one line
  virtual void fields(ParamFields& /*f*/) {}          // a spec's `route_with`

  // What listings, checks and results say of it.
  struct Capabilities {
    bool slo_aware = false;        // an SLO that it is told changes where requests go
    bool places_adapters = false;  // decides itself which replicas have an adapter
  };
  virtual Capabilities capabilities() const { return {}; }

  // Asked once, before anything is built. By default the spec's equal replicas.
  virtual Deployment deploy(const DeploymentView& view) { return view.equal_replicas(); }
  // Once the replicas are there, before the first request.
  virtual void begin(const ClusterView& /*view*/) {}

  virtual ReplicaId route(const RoutedRequest& request, const ClusterView& view) = 0;
  // Whether a request's adapter begins to load when the request is routed, beside the step that is
  // running, and not only when a step needs it.
  virtual bool loads_on_dispatch() const { return false; }
  // Whether a request is routed between steps only, as by a router that asks every replica and
  // waits for the answers: it is routed when the steps that run have ended, none starts meanwhile,
  // and the next request is routed after the steps that follow.
  virtual bool routes_between_steps() const { return false; }
  virtual void on_finished(const FinishedRequest& /*request*/) {}

  virtual TimeNs rebalance_every() const { return 0; }  // 0: never
  virtual Rebalance rebalance(const ClusterView& /*view*/) { return {}; }
};

class Technique {
 public:
  static constexpr const char* kRegistryName = "technique";
  virtual ~Technique() = default;

  virtual std::string summary() const = 0;  // one line
  virtual std::string paper() const = 0;    // where it is described, with the section

  // What it needs beyond slices, loads and evictions, for listings and checks.
  struct Capabilities {
    bool mixed_batches = false;        // several adapters in one step, on one copy of the model
    bool merges = false;               // folds adapters into the weights
    bool knows_output_length = false;  // declared oracle: output_limit() is the true length
    bool host_lora = false;            // plans LoRA on the host, as it is set up
    // No first token waits for an adapter to be loaded, as it is set up.
    bool cold_start_free = false;
  };
  virtual Capabilities capabilities() const = 0;

  virtual void fields(ParamFields& /*f*/) {}
  // Throws SpecError for parameters that do not go together.
  virtual void check() const {}
  virtual void configure(EngineSettings* /*engine*/) const {}
  virtual std::unique_ptr<ReplicaPolicy> replica_policy() const = 0;
  virtual std::string default_cluster_policy() const { return "least-loaded"; }
};

// What CaraServe's Table 1 asks of a system, by the names there: "GPU-efficient, SLO-aware".
std::string desirable(const Technique::Capabilities& technique,
                      const ClusterPolicy::Capabilities& route);

// Throws SpecError when the technique cannot work with these settings.
void check_engine(const Technique& technique, const EngineSettings& engine);

}  // namespace servelab

// On the last line of a technique's file, outside any namespace.
#define SERVELAB_TECHNIQUE(id, Class) SERVELAB_REGISTER(Technique, id, Class)
#define SERVELAB_CLUSTER_POLICY(id, Class) SERVELAB_REGISTER(ClusterPolicy, id, Class)

#endif  // SERVELAB_SERVE_POLICY_H_
