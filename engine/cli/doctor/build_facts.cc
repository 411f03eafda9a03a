// CMakeLists.txt defines the SERVELAB_BUILD_ names for this file alone.
#include "engine/cli/doctor/build_facts.h"

#include <sstream>

namespace servelab::doctor {

BuildFacts build_facts() {
  BuildFacts facts;
  facts.type = SERVELAB_BUILD_TYPE;
  facts.flags = SERVELAB_BUILD_FLAGS;
#if defined(__OPTIMIZE__)
  facts.optimised = true;
#endif
#if defined(__SANITIZE_ADDRESS__)  // CMakeLists.txt defines it for Clang
  facts.sanitized = true;
#endif
  std::istringstream targets(SERVELAB_BUILD_CUDA_TARGETS);
  for (std::string target; targets >> target;) facts.cuda_targets.push_back(target);
  return facts;
}

}  // namespace servelab::doctor
