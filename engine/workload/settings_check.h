// Refuses settings that would have no effect: a reader of the spec would think that they had.
#ifndef SERVELAB_WORKLOAD_SETTINGS_CHECK_H_
#define SERVELAB_WORKLOAD_SETTINGS_CHECK_H_

#include "engine/core/config_node.h"
#include "engine/workload/settings.h"

namespace servelab {

// The sections are the maps that `settings` were read from. A key at its default value passes:
// sweeps, `extends` and recorded effective settings carry such keys. Throws SpecError at the key,
// also for 'rate' together with 'speed'.
void refuse_settings_without_effect(const WorkloadSettings& settings, const ConfigNode& arrivals,
                                    const ConfigNode& popularity, const ConfigNode& lengths);

}  // namespace servelab

#endif  // SERVELAB_WORKLOAD_SETTINGS_CHECK_H_
