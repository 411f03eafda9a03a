// Tables of a point file: a group of datasets of equal length.
#ifndef SERVELAB_RECORD_COLUMNS_H_
#define SERVELAB_RECORD_COLUMNS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/ids.h"
#include "engine/record/hdf5_writer.h"

namespace servelab {

// Ids as files hold them: -1 for the base model, and for no replica.
inline std::int32_t or_minus_one(AdapterId id) {
  return id == kBaseModel ? -1 : static_cast<std::int32_t>(index(id));
}
inline std::int32_t or_minus_one(ReplicaId id) {
  return id == kNoReplica ? -1 : static_cast<std::int32_t>(index(id));
}

// Writes one column per call from rows 0..count-1; `get` maps a row to its value. Columns of a
// group are written in the order of their names.
class Columns {
 public:
  Columns(Hdf5Writer* out, std::string group, std::size_t count)
      : out_(out), group_(std::move(group)), count_(count) {}

  template <class T, class Get>
  void column(const char* name, const DatasetText& text, Get get) {
    std::vector<T> values(count_);
    for (std::size_t i = 0; i < count_; ++i) values[i] = static_cast<T>(get(i));
    out_->dataset<T>(group_ + "/" + name, values, text);
  }

 private:
  Hdf5Writer* out_;
  std::string group_;
  std::size_t count_;
};

}  // namespace servelab

#endif  // SERVELAB_RECORD_COLUMNS_H_
