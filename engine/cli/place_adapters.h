// Where `servelab place` takes adapters from: a CSV file, a workload, a plan that is in use.
#ifndef SERVELAB_CLI_PLACE_ADAPTERS_H_
#define SERVELAB_CLI_PLACE_ADAPTERS_H_

#include <string>
#include <vector>

namespace servelab {

inline constexpr int kMostGpus = 4096;

struct NamedAdapter {
  std::string name, path;
  int rank = 0;
  double rate = 0;  // requests/s
};

// Columns name, rank, rate, and path where it is known. All throw SpecError.
std::vector<NamedAdapter> read_adapters(const std::string& path);

// The adapters that a trace's requests name (adapter-0, ...), at their mean rates.
std::vector<NamedAdapter> adapters_of_trace(const std::string& path);

// The GPU that a plan gives each of these adapters; -1 for those that it does not know.
std::vector<int> gpus_before(const std::string& path, const std::vector<NamedAdapter>& adapters);

}  // namespace servelab

#endif  // SERVELAB_CLI_PLACE_ADAPTERS_H_
