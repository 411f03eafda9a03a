// How this program was built.
#ifndef SERVELAB_CLI_DOCTOR_BUILD_FACTS_H_
#define SERVELAB_CLI_DOCTOR_BUILD_FACTS_H_

#include <string>
#include <vector>

namespace servelab::doctor {

struct BuildFacts {
  std::string compiler;    // "gcc 12.2.0"
  std::string type;        // CMake's build type
  std::string flags;       // beside the targets' own
  std::string sanitizers;  // empty without
  bool optimised = false;
  bool x86 = false;                       // AVX2 and AVX-512 kernels are in it
  std::vector<std::string> cuda_targets;  // "80-real"; empty without CUDA
};

BuildFacts build_facts();

}  // namespace servelab::doctor

#endif  // SERVELAB_CLI_DOCTOR_BUILD_FACTS_H_
