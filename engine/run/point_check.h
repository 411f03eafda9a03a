// What a technique asks of its point: told before anything runs where the run would refuse its
// plans.
#ifndef SERVELAB_RUN_POINT_CHECK_H_
#define SERVELAB_RUN_POINT_CHECK_H_

#include "engine/run/point.h"

namespace servelab {

// Throws SpecError, without a place, when the technique cannot work with the point's engine,
// backend and hardware.
void check_technique(const PointSettings& point);

}  // namespace servelab

#endif  // SERVELAB_RUN_POINT_CHECK_H_
