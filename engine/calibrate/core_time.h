// What one core of the host takes for its part of an adapter (CaraServe 4.2, Fig. 18 left).
#ifndef SERVELAB_CALIBRATE_CORE_TIME_H_
#define SERVELAB_CALIBRATE_CORE_TIME_H_

#include <memory>
#include <string>
#include <vector>

#include "engine/backend/device/packed_adapter.h"
#include "engine/calibrate/calibration_fit.h"
#include "engine/model/model_config.h"

namespace servelab {

class CoreTime {
 public:
  // An adapter of `rank` on `targets`, for activations of `type`.
  CoreTime(const ModelConfig& model, const std::vector<std::string>& targets, int rank,
           kernels::DType type);

  // x A B of `rows` rows, one matrix and layer after the other, on the calling thread: what a LoRA
  // worker computes, so that an adapter's weights come from where they are in a step.
  CoreSample measure(int rows);

 private:
  struct Matrix {
    LinearLayer layer;
    LinearShape shape;
  };
  const int layers_;
  const kernels::DType type_;
  std::vector<Matrix> matrices_;
  double share_ = 0;
  std::unique_ptr<PackedAdapter> adapter_;
  std::vector<std::byte> x_;
  std::vector<float> out_;
};

}  // namespace servelab

#endif  // SERVELAB_CALIBRATE_CORE_TIME_H_
