// How much of the processor time that a run in wall-clock time asked for it got. What others took
// is no finding about the experiment.
#ifndef SERVELAB_RUN_PROCESSOR_SHARE_H_
#define SERVELAB_RUN_PROCESSOR_SHARE_H_

#include <functional>
#include <map>
#include <optional>
#include <string>

namespace servelab {

// What Linux has counted up to a moment, in seconds.
struct ProcessorTimes {
  struct Thread {
    double ran_s = 0;
    double waited_s = 0;  // runnable, but on no processor
  };
  std::map<int, Thread> threads;  // of this process and of those that it began, by thread id
  double busy_s = 0;              // of the processors that this process may use, with anyone's work
  double stolen_s = 0;            // of those, by other guests of the machine's host
};

// Of now, as /proc says; none where it does not say. `root` goes before /proc.
std::optional<ProcessorTimes> processor_times(const std::string& root = "");
using ProcessorReader = std::function<std::optional<ProcessorTimes>()>;

// Between two moments, in seconds, summed over this process's threads.
struct ProcessorShare {
  double ran_s = 0;
  double waited_s =
      0;  // while others ran: threads of one run that wait for each other do not count
  double stolen_s = 0;  // from this process
  double lost_s() const { return waited_s + stolen_s; }
  double loss() const { return lost_s() > 0 ? lost_s() / (ran_s + lost_s()) : 0; }
};
ProcessorShare processor_share(const ProcessorTimes& began, const ProcessorTimes& ended);

// Begins the reason of a run that others disturbed.
inline constexpr const char* kDisturbance = "others disturbed the run: ";

// That reason, with the figures, where more than `most` of the time was lost, or "". Losses below
// 0.1 s are within the 10 ms that /proc/stat counts in.
std::string disturbance(const ProcessorShare& share, double most);

}  // namespace servelab

#endif  // SERVELAB_RUN_PROCESSOR_SHARE_H_
