#include "engine/core/threads.h"

#include <string>
#include <system_error>

#include "engine/core/check.h"

namespace servelab {

std::vector<std::thread> start_threads(int count, const std::function<void(int)>& work,
                                       const std::function<void()>& stop) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(count));
  try {
    while (static_cast<int>(threads.size()) < count) {
      threads.emplace_back(work, static_cast<int>(threads.size()));
    }
  } catch (const std::system_error& error) {
    stop();
    for (std::thread& thread : threads) thread.join();
    throw MachineError("no room for thread " + std::to_string(threads.size() + 1) + " of " +
                       std::to_string(count) + " (" + error.code().message() +
                       "): allow more processes (ulimit -u) or memory, or use fewer threads "
                       "(runtime.threads, -j)");
  }
  return threads;
}

}  // namespace servelab
