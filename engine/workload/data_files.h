// The traces that the loaders know: where each stands inside the data folder, its licence, and the
// name that data/fetch calls it.
#ifndef SERVELAB_WORKLOAD_DATA_FILES_H_
#define SERVELAB_WORKLOAD_DATA_FILES_H_

#include <optional>
#include <string>
#include <vector>

#include "engine/core/check.h"

namespace servelab {

// One input that a workload used; recorded in every result.
struct WorkloadSource {
  std::string role;  // "arrivals", "popularity", "lengths"
  std::string name;
  std::string origin;  // path inside the data folder, or "embedded"
  std::string sha256;  // empty for embedded statistics
  std::string licence;
};

enum class TraceKind { kFunctions, kRequests, kLengths, kPopularity, kClients, kRate };

struct DataFile {
  std::string name;  // as in a spec
  TraceKind kind;
  std::string path;  // inside the data folder
  std::string licence;
  std::string fetch;  // its name for data/fetch; empty where the file is made by hand
};

const std::vector<DataFile>& data_files();
const DataFile* find_data_file(const std::string& name);
std::vector<std::string> data_file_names(const std::vector<TraceKind>& kinds);

// The file's full path, or nothing where the data folder or the file is absent. A path that ends in
// .gz is also found without it, and the reverse.
std::optional<std::string> locate(const DataFile& file, const std::string& data_dir);

// How to get a missing file; ends error messages.
std::string remedy_for(const DataFile& file);

// Whether `name` is a file of the user's own (by its extension) and not a catalogued name.
bool is_own_file(const std::string& name);
// Its path: inside the data folder, else as it stands. Throws SpecError at `mark` where neither is
// a file.
std::string own_file_path(const std::string& name, const std::string& data_dir,
                          const SourceMark& mark);

// `path` relative to the data folder, so that no result records a machine's folders.
WorkloadSource source_of(const std::string& role, const std::string& name, const std::string& path,
                         const std::string& data_dir, const std::string& licence);
WorkloadSource embedded_source(const std::string& role, const std::string& name);

}  // namespace servelab

#endif  // SERVELAB_WORKLOAD_DATA_FILES_H_
