// Which specs draw their workloads from which of the real traces.
#ifndef SERVELAB_CLI_DOCTOR_DATA_USE_H_
#define SERVELAB_CLI_DOCTOR_DATA_USE_H_

#include <map>
#include <string>
#include <vector>

namespace servelab::doctor {

struct DataUse {
  std::vector<std::string> specs;  // ids, ascending
  std::vector<std::string> needs;  // those of them that cannot do with a stand-in
};

struct DataUses {
  std::map<std::string, DataUse> of;  // by a data file's name
  std::vector<std::string> broken;    // messages of specs that cannot be read
};

DataUses data_uses(const std::string& experiments);

}  // namespace servelab::doctor

#endif  // SERVELAB_CLI_DOCTOR_DATA_USE_H_
