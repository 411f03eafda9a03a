// The roofline's times (engine/backend/cost/op_cost.h) of one operator over many shapes, again and
// again with other constants: what data/fit_hardware.py minimises.
#ifndef SERVELAB_CALIBRATE_OP_TIMES_H_
#define SERVELAB_CALIBRATE_OP_TIMES_H_

#include <iosfwd>
#include <string>

namespace servelab {

struct OpTimesOptions {
  std::string op;       // a section of a roofline profile, see below
  std::string profile;  // its name or file; its data sheet and other constants hold
  std::string experiments = "experiments";
};

// Reads `in` to its end: one shape a line, as numbers with commas between; an empty line; then on
// each line constants of the op's section, as YAML: {launch_us: 3, bandwidth_fraction: 0.6}. What a
// line does not name stays. Answers each of them with one line: the shapes' microseconds with
// blanks between, or "refused: " and why. SpecError for an unknown op, bad profile or bad shape.
//
//   op           shape
//   gemm         m, n, k
//   prefill      requests, new tokens of each, earlier context of each, heads, KV heads, head size
//   decode       requests, context of each, heads, KV heads, head size; KV in L2 where it fits
//   all_reduce   GPUs, bytes
//   elementwise  bytes
void answer_op_times(const OpTimesOptions& options, std::istream& in, std::ostream& out);

}  // namespace servelab

#endif  // SERVELAB_CALIBRATE_OP_TIMES_H_
