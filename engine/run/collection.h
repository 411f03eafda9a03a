// collected.h5 of one spec as its rows come in, and what becomes of an older one.
#ifndef SERVELAB_RUN_COLLECTION_H_
#define SERVELAB_RUN_COLLECTION_H_

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/record/collected_file.h"
#include "engine/run/output_folder.h"
#include "engine/spec/spec.h"

namespace servelab {

struct CollectionRow {
  CollectedRow collected;
  bool present = false;
  std::optional<std::size_t> same_as;  // another row has this key
  std::string model, hardware, backend;
};

// Not thread-safe: the runner calls it under a lock.
class Collection {
 public:
  Collection(const Spec& spec, const OutputFolder& folder);

  // collected.h5 goes as soon as it is known to tell of other points than this spec's, so that a
  // run that fails or is killed leaves nothing to be drawn by mistake: by the spec's text here, and
  // by each key in forget_unless_collected().
  void forget_other_spec();
  void forget_unless_collected(const std::string& key);

  // The row that computes this key: the first one that asked.
  std::size_t owner(const std::string& key, std::size_t row);
  void set(std::size_t row, CollectionRow value) { rows_[row] = std::move(value); }

  // Rows whose points are there, in spec order; fills in those that share another row's point.
  std::vector<CollectedRow> present();
  // Writes the file when these are all rows, else removes it. Throws SpecError.
  bool write(const std::vector<CollectedRow>& rows) const;

 private:
  CollectedHeader header() const;
  bool is_collected(const std::vector<CollectedRow>& rows) const;

  const Spec& spec_;
  const OutputFolder& folder_;
  std::vector<CollectionRow> rows_;
  std::map<std::string, std::size_t> owners_;
  std::vector<std::string> old_keys_;  // of a collected.h5 that may still be this spec's
};

}  // namespace servelab

#endif  // SERVELAB_RUN_COLLECTION_H_
