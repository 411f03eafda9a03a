// An engine as its users run it, by name: `engine: {like: vllm-0.8}`. Files:
// experiments/base/engine/*.yaml, with the source of each number.
#ifndef SERVELAB_RUN_ENGINE_FILE_H_
#define SERVELAB_RUN_ENGINE_FILE_H_

#include <string>

#include "engine/backend/cost/hardware.h"
#include "engine/core/config_node.h"

namespace servelab {

struct EngineFile {
  std::string summary;  // one line
  std::string source;
  ConfigNode engine;  // keys of a spec's `engine:`, each of which the spec may override
  ConfigNode host;    // of HostConstants: what it sets of a hardware profile's
  EngineCosts costs;  // beside the kernels'; where a hardware profile's costs are not measured
  void fields(ParamFields& f);
};

// Throws SpecError with file, line and column.
EngineFile load_engine_file(const std::string& path);

}  // namespace servelab

#endif  // SERVELAB_RUN_ENGINE_FILE_H_
