// One point as an HDF5 file: the layout of results/README.md.
#ifndef SERVELAB_RECORD_POINT_FILE_H_
#define SERVELAB_RECORD_POINT_FILE_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "engine/record/summary.h"
#include "engine/serve/recorder.h"
#include "engine/serve/request.h"

namespace servelab {

inline constexpr int kResultSchema = 2;

// What identifies a point and says how it came about. JSON texts are canonical.
struct PointIdentity {
  std::string key;
  std::string spec_id;
  std::string technique;  // registry name
  std::string declares;   // what it and its route say that they can (desirable())
  std::int64_t seed = 0;
  std::string backend;
  std::string hardware;
  std::string model;
  std::string trace;      // names of the workload's sources
  std::string requested;  // JSON
  std::string effective;  // JSON
  std::string sweep;      // JSON
  std::string sources;    // JSON
  std::string context;    // JSON
  std::string notes;      // what the workload did to requests, such as cutting long ones
};

// The file's bytes, to be saved with save_atomically. `digest`, when given, receives the content
// digest.
std::vector<std::byte> point_file(const PointIdentity& point, const Workload& workload,
                                  const RunRecord& record, const Summary& summary,
                                  std::string* digest = nullptr);

// What a replay of a real run needs: its events, step timings and decision hash. False for a run in
// virtual time, which keeps none. Throws SpecError for a damaged file.
bool read_delivered(const std::string& path, RunRecord* record, std::string* decision_hash);

// As files hold it: 16 hexadecimal digits.
std::string hash_text(const StreamHash& hash);

// What collected.h5 and progress need of a point that is on disk.
struct StoredPoint {
  std::string status;  // VALID or INVALID
  std::string reasons;
  std::string trace;
  std::string content_digest;  // of the datasets
  std::string decision_hash;   // as hash_text() gives it
  Summary summary;             // by name
};

// The point at `path` when the file is whole (by its checksum), of this schema, and has this key;
// nothing otherwise. `damage` then says what is wrong with a file that is there, and is empty when
// there is none.
std::optional<StoredPoint> read_point(const std::string& path, const std::string& key,
                                      std::string* damage);

}  // namespace servelab

#endif  // SERVELAB_RECORD_POINT_FILE_H_
