// Mooncake's JSON lines (FAST'25, kvcache-ai/Mooncake) and our superset of them, one request a
// line:
//
//   timestamp      ms, fractions allowed: six digits are nanoseconds
//   input_length   prompt tokens
//   output_length  output tokens
//   hash_ids       Mooncake's prefix blocks; not used: prefix caching is not modelled
//   max_tokens     the client's limit on the output (default: what lengths.output_limit says)
//   adapter        index or name; null: the base model; absent: popularity decides
//   rank           LoRA rank of the adapter, the same in every line that has it
//   base_model     index or name
//   session        number or name
//   slo            {"ttft_ms": .., "tpot_ms": .., "latency_ms": ..}, each optional
//
// Names, and sessions either way, are numbered by first appearance. Other keys are kept as
// RequestTrace::unused_keys, for the result's notes.
#ifndef SERVELAB_WORKLOAD_MOONCAKE_TRACE_H_
#define SERVELAB_WORKLOAD_MOONCAKE_TRACE_H_

#include <string>

#include "engine/workload/request_trace.h"

namespace servelab {

// The rows in file order. Throws SpecError with the file, the line and what is wrong with it.
RequestTrace read_mooncake_trace(const std::string& path, const std::string& remedy, RowsFor use);

}  // namespace servelab

#endif  // SERVELAB_WORKLOAD_MOONCAKE_TRACE_H_
