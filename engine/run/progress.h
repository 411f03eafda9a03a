// Tells people how a run is getting on: a bar on a terminal, a line per point elsewhere.
#ifndef SERVELAB_RUN_PROGRESS_H_
#define SERVELAB_RUN_PROGRESS_H_

#include <chrono>
#include <cstddef>
#include <string>

namespace servelab {

enum class PointOutcome { kRun, kCached, kFailed };

struct PointNews {
  std::string key;
  std::string label;  // technique, sweep position and seed
  PointOutcome outcome = PointOutcome::kRun;
  std::string status;   // VALID or INVALID
  std::string message;  // why it is INVALID or failed
  std::string warning;  // about what was found in the cache
  double wall_s = 0;    // 0: not known
};

// Not thread-safe: the runner calls it under a lock. Writes to stderr.
class Progress {
 public:
  Progress(std::string spec_id, std::size_t total, bool quiet);
  void point(const PointNews& news);
  void note(const std::string& line);  // on a line of its own, even when quiet
  void finish();                       // ends the bar

 private:
  void draw_bar(const std::string& label);
  void print_line(const PointNews& news);
  double elapsed_s() const;

  std::string spec_id_;
  std::size_t total_;
  bool quiet_;
  bool is_terminal_;
  std::size_t done_ = 0;
  std::size_t computed_ = 0;
  double next_line_s_ = 0;
  double next_bar_s_ = 0;
  bool bar_shown_ = false;
  std::chrono::steady_clock::time_point started_;
};

}  // namespace servelab

#endif  // SERVELAB_RUN_PROGRESS_H_
