#ifndef SERVELAB_CORE_THREADS_H_
#define SERVELAB_CORE_THREADS_H_

#include <functional>
#include <thread>
#include <vector>

namespace servelab {

// Threads of work(0) to work(count - 1). Where the system has no room for one of them (a limit on
// processes, or on memory), calls `stop`, which makes the others return, joins them and throws
// MachineError.
std::vector<std::thread> start_threads(int count, const std::function<void(int)>& work,
                                       const std::function<void()>& stop);

}  // namespace servelab

#endif  // SERVELAB_CORE_THREADS_H_
