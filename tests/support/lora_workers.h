// Workers of LoRA on the host, for tests.
#ifndef SERVELAB_TESTS_SUPPORT_LORA_WORKERS_H_
#define SERVELAB_TESTS_SUPPORT_LORA_WORKERS_H_

#include <set>

#include "engine/backend/device/host_lora_plan.h"

namespace servelab::test {

// With few rows each, so that small prompts are shared, and on whatever cores there are.
HostLoraPlan lora_workers(HostLoraBy by, int workers,
                          HostLoraTransport transport = HostLoraTransport::kShared);

// LoRA workers that are a process's, begun by any of its threads.
std::set<int> lora_workers_of(int process);

// One that nobody has asked how it ended does not live.
bool lives(int process);
bool ends_soon(int process);  // within three seconds

}  // namespace servelab::test

#endif  // SERVELAB_TESTS_SUPPORT_LORA_WORKERS_H_
