// How this program was built.
#ifndef SERVELAB_CLI_DOCTOR_BUILD_FACTS_H_
#define SERVELAB_CLI_DOCTOR_BUILD_FACTS_H_

#include <string>
#include <vector>

namespace servelab::doctor {

struct BuildFacts {
  std::string type;   // CMake's build type
  std::string flags;  // beside the targets' own
  bool optimised = false;
  bool sanitized = false;
  std::vector<std::string> cuda_targets;  // "80-real"; empty without CUDA
};

BuildFacts build_facts();

}  // namespace servelab::doctor

#endif  // SERVELAB_CLI_DOCTOR_BUILD_FACTS_H_
