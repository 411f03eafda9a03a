#include "engine/run/processor_share.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include "engine/backend/device/thread_team.h"

namespace servelab {
namespace {

namespace fs = std::filesystem;

constexpr double kLeastLoss_s = 0.1;

// Adds a process's threads and those of the processes that they began; false where the system says
// nothing of a thread that is there. Threads and processes may end at any time.
bool add_threads(const std::string& proc, const std::string& process, ProcessorTimes* times) {
  std::error_code gone;
  std::vector<std::string> children;
  bool known = false;
  for (const auto& entry : fs::directory_iterator(proc + "/" + process + "/task", gone)) {
    std::ifstream file(entry.path() / "schedstat");
    double ran_ns = 0;
    double waited_ns = 0;
    if (!(file >> ran_ns >> waited_ns)) continue;
    known = true;
    const int id = std::atoi(entry.path().filename().c_str());
    times->threads[id] = {1e-9 * ran_ns, 1e-9 * waited_ns};
    std::ifstream list(entry.path() / "children");
    for (std::string child; list >> child;) children.push_back(child);
  }
  for (const std::string& child : children) add_threads(proc, child, times);
  return known;
}

// Adds the lines "cpu<n> user nice system idle iowait irq softirq steal ..." of these processors.
bool add_processors(const std::string& proc, const std::vector<int>& cores, ProcessorTimes* times) {
  const double tick_s = 1.0 / static_cast<double>(::sysconf(_SC_CLK_TCK));
  std::set<std::string> names;
  for (const int core : cores) names.insert("cpu" + std::to_string(core));
  std::ifstream file(proc + "/stat");
  std::size_t found = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
    words >> name >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal;
    if (!words || names.count(name) == 0) continue;
    ++found;
    times->busy_s += tick_s * (user + nice + system + irq + softirq);
    times->stolen_s += tick_s * steal;
  }
  return found == names.size();
}

}  // namespace

std::optional<ProcessorTimes> processor_times(const std::string& root) {
  ProcessorTimes times;
  const std::string proc = root + "/proc";
  if (!add_processors(proc, usable_cores(), &times)) return std::nullopt;
  if (!add_threads(proc, "self", &times)) return std::nullopt;
  return times;
}

ProcessorShare processor_share(const ProcessorTimes& began, const ProcessorTimes& ended) {
  ProcessorShare share;
  for (const auto& [id, thread] : ended.threads) {
    ProcessorTimes::Thread before;  // zero for one that began since
    if (const auto known = began.threads.find(id); known != began.threads.end()) {
      before = known->second;
    }
    share.ran_s += std::max(0.0, thread.ran_s - before.ran_s);
    share.waited_s += std::max(0.0, thread.waited_s - before.waited_s);
  }
  const double busy = std::max(ended.busy_s - began.busy_s, share.ran_s);
  share.waited_s = std::min(share.waited_s, busy - share.ran_s);
  const double stolen = std::max(0.0, ended.stolen_s - began.stolen_s);
  share.stolen_s = busy > 0 ? stolen * share.ran_s / busy : 0;
  return share;
}

std::string disturbance(const ProcessorShare& share, double most) {
  if (share.lost_s() < kLeastLoss_s || share.loss() <= most) return "";
  return fmt::format(
      "{}it did not get {:.1f} % of the processor time that it asked for, more than the {:g} % of "
      "runtime.max_processor_loss: {:.2f} s of waiting while others ran and {:.2f} s stolen by "
      "other guests of the host, beside {:.2f} s got",
      kDisturbance, 100 * share.loss(), 100 * most, share.waited_s, share.stolen_s, share.ran_s);
}

}  // namespace servelab
