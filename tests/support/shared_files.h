// The models and hardware profiles that come with the tree.
#ifndef SERVELAB_TESTS_SUPPORT_SHARED_FILES_H_
#define SERVELAB_TESTS_SUPPORT_SHARED_FILES_H_

#include <string>
#include <vector>

#include "engine/backend/cost/hardware.h"
#include "engine/model/model_config.h"
#include "engine/spec/library.h"

namespace servelab::test {

inline std::string base_path(const std::string& kind, const std::string& name) {
  return std::string(SERVELAB_SOURCE_DIR) + "/experiments/base/" + kind + "/" + name + ".yaml";
}
inline HardwareProfile device(const std::string& name) {
  return load_hardware_profile(base_path("hardware", name));
}
inline ModelConfig model(const std::string& name) {
  return load_model_config(base_path("model", name));
}

// Names of all whose steps are made of times of kernels.
inline std::vector<std::string> roofline_devices() {
  std::vector<std::string> names;
  const Library library(std::string(SERVELAB_SOURCE_DIR) + "/experiments");
  for (const std::string& name : library.names("hardware")) {
    if (device(name).cost_model == "roofline") names.push_back(name);
  }
  return names;
}

}  // namespace servelab::test

#endif  // SERVELAB_TESTS_SUPPORT_SHARED_FILES_H_
