#ifndef SERVELAB_CORE_PROCESSOR_H_
#define SERVELAB_CORE_PROCESSOR_H_

#include <string>

namespace servelab {

// What this machine's processors are called, as the system says; "unknown" where it does not.
std::string processor_name();

}  // namespace servelab

#endif  // SERVELAB_CORE_PROCESSOR_H_
