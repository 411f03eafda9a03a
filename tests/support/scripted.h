// Policies that a test spells out.
#ifndef SERVELAB_TESTS_SUPPORT_SCRIPTED_H_
#define SERVELAB_TESTS_SUPPORT_SCRIPTED_H_

#include <functional>
#include <utility>

#include "engine/serve/policy.h"

namespace servelab::test {

using Planner = std::function<bool(const ReplicaView&, StepPlan*)>;

class ScriptedPolicy final : public ReplicaPolicy {
 public:
  explicit ScriptedPolicy(Planner planner) : planner_(std::move(planner)) {}
  bool plan(const ReplicaView& view, StepPlan* out) override { return planner_(view, out); }

 private:
  Planner planner_;
};

class ToReplica0 final : public ClusterPolicy {
 public:
  ReplicaId route(const RoutedRequest&, const ClusterView&) override { return ReplicaId{}; }
};

}  // namespace servelab::test

#endif  // SERVELAB_TESTS_SUPPORT_SCRIPTED_H_
