// What a result says about the machine and the program that made it. Never part of a digest.
#ifndef SERVELAB_RECORD_CONTEXT_H_
#define SERVELAB_RECORD_CONTEXT_H_

#include <string>

namespace servelab {

std::string version_text();  // "0.1.0"

// JSON: machine, processor, compiler, library versions, start time, and the point's wall time.
std::string context_json(double wall_s);

// Lines for `servelab version`.
std::string version_report();

}  // namespace servelab

#endif  // SERVELAB_RECORD_CONTEXT_H_
