// Times the real scheduling path: a cluster under vllm-lora on the CPU engine, with a model so
// small that its steps cost next to nothing beside what is to be measured.
#ifndef SERVELAB_CALIBRATE_SCHEDULER_PROBE_H_
#define SERVELAB_CALIBRATE_SCHEDULER_PROBE_H_

#include <string>

#include "engine/calibrate/calibrate.h"

namespace servelab {

// On an engine whose steps take next to no time. `threads` of the CPU engine.
SchedulerSample probe_scheduler(const std::string& backend, const PlannedSchedule& schedule,
                                int threads);

}  // namespace servelab

#endif  // SERVELAB_CALIBRATE_SCHEDULER_PROBE_H_
