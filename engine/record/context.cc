#include "engine/record/context.h"

#include <hdf5.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/record/build_id.h"
#include "engine/record/point_file.h"

namespace servelab {
namespace {

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string compiler() {
#if defined(__clang__)
  return std::string("clang ") + __clang_version__;
#else
  return std::string("gcc ") + __VERSION__;
#endif
}

const char* optimisation() {
#if defined(__OPTIMIZE__)
  return "on";
#else
  return "off";
#endif
}

}  // namespace

std::string version_text() { return "0.1.0"; }

std::string context_json(double wall_s, double decisions_wall_s, const std::string& device) {
  utsname system{};
  uname(&system);
  nlohmann::json json;
  json["servelab"] = version_text();
  json["build_id"] = build_id();
  json["compiler"] = compiler();
  json["optimisation"] = optimisation();
  json["hdf5"] = H5_VERS_INFO;
  json["system"] = std::string(system.sysname) + " " + system.release + " " + system.machine;
  json["processor"] = processor();
  json["processors"] = sysconf(_SC_NPROCESSORS_ONLN);
  if (!device.empty()) json["device"] = device;
  json["written"] = utc_now();
  json["wall_s"] = wall_s;
  json["decisions_wall_s"] = decisions_wall_s;
  return json.dump();
}

std::string version_report(const std::string& backends) {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return "servelab " + version_text() + "\nbuild id       " + build_id() + "\ncompiler       " +
         compiler() + ", optimisation " + optimisation() + "\nHDF5           " +
         std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release) +
         "\nresult schema  " + std::to_string(kResultSchema) + "\nbackends       " + backends +
         "\n";
}

}  // namespace servelab
