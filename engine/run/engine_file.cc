#include "engine/run/engine_file.h"

#include "engine/serve/engine_settings.h"

namespace servelab {

void EngineFile::fields(ParamFields& f) {
  f.add("summary", &summary, "one line").required();
  f.add("source", &source, "where the numbers come from").required();
}

EngineFile load_engine_file(const std::string& path) {
  const ConfigNode node = parse_yaml_file(path);
  EngineFile file;
  bind_params(node, "the engine", &file, {"engine", "host", "costs"});
  const auto section = [&node](const char* name) {
    const ConfigNode* found = node.find(name);
    return found == nullptr ? ConfigNode::map() : *found;
  };
  file.engine = section("engine");
  EngineSettings settings;  // to check them where they stand
  bind_params(file.engine, "engine", &settings);
  if (!settings.like.empty()) {
    throw SpecError(file.engine.find("like")->mark, "an engine is like no other; give its keys");
  }
  file.host = section("host");
  HostConstants host;
  bind_params(file.host, "host", &host);
  bind_params(section("costs"), "costs", &file.costs);
  return file;
}

}  // namespace servelab
