// Adapters that wait on disk: PEFT folders with random weights, written before a run and removed
// after it.
#ifndef SERVELAB_RUN_ADAPTER_FOLDER_H_
#define SERVELAB_RUN_ADAPTER_FOLDER_H_

#include <memory>
#include <string>
#include <vector>

#include "engine/backend/device/real_backend.h"
#include "engine/model/model_config.h"
#include "engine/serve/request.h"

namespace servelab {

// Each load() reads and checks the adapter's files anew. They are dropped from the page cache
// first, so that a load from disk is one; on a file system that cannot do that it reads from
// memory.
std::unique_ptr<AdapterSource> make_adapter_folder(const ModelConfig& model,
                                                   const std::vector<std::string>& targets,
                                                   const Workload& workload);

}  // namespace servelab

#endif  // SERVELAB_RUN_ADAPTER_FOLDER_H_
