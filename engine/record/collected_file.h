// collected.h5: every point of a spec as columns, in spec order (results/README.md).
#ifndef SERVELAB_RECORD_COLLECTED_FILE_H_
#define SERVELAB_RECORD_COLLECTED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/config_node.h"
#include "engine/record/point_file.h"

namespace servelab {

struct CollectedHeader {
  std::string spec_id;
  std::string title;
  std::string figure;
  std::string spec;  // the YAML
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

// The file's bytes, to be saved with save_atomically. Links and `file` are relative to its folder.
// A swept column is a column of whole numbers, of numbers, or else of texts.
std::vector<std::byte> collected_file(const CollectedHeader& header,
                                      const std::vector<CollectedRow>& rows);

}  // namespace servelab

#endif  // SERVELAB_RECORD_COLLECTED_FILE_H_
