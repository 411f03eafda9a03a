// What a workload hands to the serving core: adapters and requests, in arrival order.
#ifndef SERVELAB_SERVE_REQUEST_H_
#define SERVELAB_SERVE_REQUEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/ids.h"
#include "engine/core/units.h"

namespace servelab {

struct Adapter {
  std::string name;
  ModelId model{};
  int rank = 0;     // LoRA rank r, >= 1
  Bytes bytes = 0;  // size of all its A and B matrices on one device group
};

struct Request {
  TimeNs arrival = 0;  // when the client sends it; latency counts from here
  AdapterId adapter = kBaseModel;
  ModelId model{};
  std::int32_t prompt_tokens = 0;        // >= 1
  std::int32_t output_tokens = 0;        // >= 1; true length, known to the workload alone
  std::int32_t output_limit_tokens = 0;  // >= output_tokens; the client's max_tokens
  std::uint32_t draw = 0;  // uniform over all values: for policies that route at random
};

// What the client of one request asks for; kUnset where it asks for nothing.
struct RequestObjective {
  TimeNs ttft = kUnset;
  TimeNs tpot = kUnset;  // mean over its tokens after the first
  TimeNs latency = kUnset;
};

struct Workload {
  std::vector<Adapter> adapters;  // indexed by AdapterId
  std::vector<Request> requests;  // indexed by RequestId, sorted by arrival
  // What the requests' adapters were drawn from: shares by AdapterId, or empty for equal ones.
  std::vector<double> adapter_shares = {};
  // Of traces that tell, by RequestId; else empty. They are recorded; nothing that serves sees
  // them.
  std::vector<std::int32_t> sessions = {};  // by first appearance, -1 for none
  std::vector<RequestObjective> objectives = {};
};

}  // namespace servelab

#endif  // SERVELAB_SERVE_REQUEST_H_
