// collected.h5: every point of a spec as columns, in spec order (results/README.md).
#ifndef SERVELAB_RECORD_COLLECTED_FILE_H_
#define SERVELAB_RECORD_COLLECTED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/config_node.h"
#include "engine/record/point_file.h"

namespace servelab {

struct CollectedHeader {
  std::string spec_id;
  std::string title;
  std::string figure;
  std::string spec;       // the YAML
  std::string spec_path;  // where it was, for commands that people repeat
  std::string backend;
  std::string hardware;
  std::string model;
  std::string trace;
  std::vector<std::string> swept;  // paths
};

struct CollectedRow {
  std::string label;      // becomes the column `technique`: what tells curves apart
  std::string technique;  // registry name: the column `technique_id`
  std::int64_t seed = 0;
  std::string key;
  std::vector<ConfigNode> coordinates;  // one per swept path
  StoredPoint point;
};

// What an earlier run of the spec collected.
struct CollectedFacts {
  std::string spec;
  std::vector<std::string> keys;  // sorted
};

// Nothing when the file is absent; without a spec and keys when it cannot be read.
std::optional<CollectedFacts> read_collected(const std::string& path);

// The file's bytes, to be saved with save_atomically. Links and `file` are relative to its folder.
// A swept column is a column of whole numbers, of numbers, or else of texts.
std::vector<std::byte> collected_file(const CollectedHeader& header,
                                      const std::vector<CollectedRow>& rows);

}  // namespace servelab

#endif  // SERVELAB_RECORD_COLLECTED_FILE_H_
