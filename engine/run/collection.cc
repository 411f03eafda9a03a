#include "engine/run/collection.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "engine/core/check.h"
#include "engine/record/atomic_file.h"

namespace servelab {
namespace {

// The rows' distinct values, in spec order.
template <class Get>
std::string joined(const std::vector<CollectionRow>& rows, Get get) {
  std::set<std::string> seen;
  std::string text;
  for (const CollectionRow& row : rows) {
    const std::string value = get(row);
    if (value.empty() || !seen.insert(value).second) continue;
    text += (text.empty() ? "" : ", ") + value;
  }
  return text;
}

}  // namespace

Collection::Collection(const Spec& spec, const OutputFolder& folder)
    : spec_(spec), folder_(folder), rows_(spec.point_count()) {}

void Collection::forget_other_spec() {
  const std::optional<CollectedFacts> old = read_collected(folder_.collected_path());
  if (!old) return;
  if (old->spec != spec_.yaml || old->keys.size() != rows_.size()) {
    folder_.remove_collected();
  } else {
    old_keys_ = old->keys;
  }
}

void Collection::forget_unless_collected(const std::string& key) {
  if (old_keys_.empty() || std::binary_search(old_keys_.begin(), old_keys_.end(), key)) return;
  folder_.remove_collected();
  old_keys_.clear();
}

std::size_t Collection::owner(const std::string& key, std::size_t row) {
  return owners_.emplace(key, row).first->second;
}

std::vector<CollectedRow> Collection::present() {
  std::vector<CollectedRow> there;
  for (CollectionRow& row : rows_) {
    if (!row.present || (row.same_as && !rows_[*row.same_as].present)) continue;
    if (row.same_as) row.collected.point = rows_[*row.same_as].collected.point;
    there.push_back(row.collected);
  }
  return there;
}

bool Collection::write(const std::vector<CollectedRow>& rows) const {
  if (rows.size() != rows_.size()) {
    if (!is_collected(rows)) folder_.remove_collected();
    return false;
  }
  if (folder_.is_writable() || !is_collected(rows)) {
    save_atomically(folder_.collected_path(), collected_file(header(), rows));
  }
  return true;
}

// Whether collected.h5 is of this spec and has these rows: another run that shares the folder may
// have got further.
bool Collection::is_collected(const std::vector<CollectedRow>& rows) const {
  const std::optional<CollectedFacts> there = read_collected(folder_.collected_path());
  return there && there->spec == spec_.yaml && there->keys.size() == rows_.size() &&
         std::all_of(rows.begin(), rows.end(),
                     [&](const CollectedRow& row) {
                       return std::binary_search(there->keys.begin(), there->keys.end(), row.key);
                     }) &&
         std::all_of(there->keys.begin(), there->keys.end(), [&](const std::string& key) {
           return std::filesystem::exists(folder_.point_path(key));
         });
}

CollectedHeader Collection::header() const {
  CollectedHeader header;
  header.spec_id = spec_.id;
  header.title = spec_.title;
  header.figure = spec_.figure;
  header.spec = spec_.yaml;
  header.spec_path = path_for_commands(spec_.path);
  header.swept = spec_.swept;
  header.backend = joined(rows_, [](const CollectionRow& row) { return row.backend; });
  header.hardware = joined(rows_, [](const CollectionRow& row) { return row.hardware; });
  header.model = joined(rows_, [](const CollectionRow& row) { return row.model; });
  header.trace = joined(rows_, [](const CollectionRow& row) { return row.collected.point.trace; });
  return header;
}

}  // namespace servelab
