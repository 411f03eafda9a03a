// The table /requests of a point file (results/README.md).
#ifndef SERVELAB_RECORD_REQUEST_TABLE_H_
#define SERVELAB_RECORD_REQUEST_TABLE_H_

#include "engine/record/hdf5_writer.h"
#include "engine/serve/recorder.h"
#include "engine/serve/request.h"

namespace servelab {

// One entry per request, in the workload's order. Base models, sessions and objectives have columns
// only where the workload has any.
void write_requests(Hdf5Writer* out, const Workload& workload, const RunRecord& record);

}  // namespace servelab

#endif  // SERVELAB_RECORD_REQUEST_TABLE_H_
