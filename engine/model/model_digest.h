#ifndef SERVELAB_MODEL_MODEL_DIGEST_H_
#define SERVELAB_MODEL_MODEL_DIGEST_H_

#include <string>

#include "engine/model/model_config.h"

namespace servelab {

// Names a model for several processes: its settings, and of a folder the files' names, sizes,
// beginnings and ends, whatever the folder's path. 16 hexadecimal digits.
std::string model_digest(const ModelConfig& model);

}  // namespace servelab

#endif  // SERVELAB_MODEL_MODEL_DIGEST_H_
