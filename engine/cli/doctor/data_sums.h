// SHA-256 of the tables that the embedded statistics were fitted to and the READMEs' figures drawn
// from.
#ifndef SERVELAB_CLI_DOCTOR_DATA_SUMS_H_
#define SERVELAB_CLI_DOCTOR_DATA_SUMS_H_

#include <string>

namespace servelab::doctor {

// Of a path inside the data folder; null where none is known.
const std::string* known_sum(const std::string& path);

}  // namespace servelab::doctor

#endif  // SERVELAB_CLI_DOCTOR_DATA_SUMS_H_
