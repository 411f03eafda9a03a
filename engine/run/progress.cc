#include "engine/run/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace servelab {
namespace {

constexpr std::size_t kBarWidth = 24;
constexpr std::size_t kLinePerPointUpTo = 200;  // longer runs print a line a second

std::string clock_text(double seconds) {
  const auto whole = static_cast<long long>(std::ceil(seconds));
  if (whole >= 3600)
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

Progress::Progress(std::string spec_id, std::size_t total, bool quiet)
    : spec_id_(std::move(spec_id)),
      total_(total),
      quiet_(quiet),
      is_terminal_(::isatty(STDERR_FILENO) == 1),
      started_(std::chrono::steady_clock::now()) {
  if (!quiet_ && is_terminal_) draw_bar("");
}

double Progress::elapsed_s() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
}

void Progress::point(const PointNews& news) {
  ++done_;
  if (news.outcome != PointOutcome::kCached) ++computed_;
  if (!news.warning.empty() && !quiet_) {
    note("servelab: warning: " + spec_id_ + " [" + news.label + "]: " + news.warning);
  }
  const bool is_bad = news.outcome == PointOutcome::kFailed;
  if (is_bad) {
    note("servelab: error: " + spec_id_ + " [" + news.label + "]: " + news.message);
  } else if (news.status == "INVALID" && !quiet_) {
    note("servelab: warning: " + spec_id_ + " [" + news.label + "] is INVALID: " + news.message);
  }
  if (quiet_) return;
  if (is_terminal_) {
    const double now = elapsed_s();
    if (now < next_bar_s_ && done_ != total_) return;
    next_bar_s_ = now + 0.1;
    draw_bar(news.label);
  } else if (!is_bad) {
    print_line(news);
  }
}

void Progress::print_line(const PointNews& news) {
  const double now = elapsed_s();
  if (news.outcome == PointOutcome::kCached) return;  // the summary counts them
  if (total_ > kLinePerPointUpTo && now < next_line_s_ && done_ != total_) return;
  next_line_s_ = now + 1;
  const std::string wall = news.wall_s > 0 ? fmt::format(" {:.2f} s", news.wall_s) : "";
  fmt::print(stderr, "{} {}/{} {} {} {}{}\n", spec_id_, done_, total_, news.key, news.label,
             news.status, wall);
}

void Progress::draw_bar(const std::string& label) {
  const double elapsed = elapsed_s();
  const double rate = elapsed > 0 ? static_cast<double>(computed_) / elapsed : 0;
  const std::size_t filled = total_ > 0 ? kBarWidth * done_ / total_ : kBarWidth;
  const std::string eta =
      rate > 0 ? clock_text(static_cast<double>(total_ - done_) / rate) : std::string("-:--");
  fmt::print(stderr, "\r{} [{}{}] {}/{}  {:.1f} points/s  ETA {}  {:.40}\x1b[K", spec_id_,
             std::string(filled, '#'), std::string(kBarWidth - filled, '.'), done_, total_, rate,
             eta, label);
  std::fflush(stderr);
  bar_shown_ = true;
}

void Progress::note(const std::string& line) {
  if (bar_shown_) fmt::print(stderr, "\r\x1b[K");
  fmt::print(stderr, "{}\n", line);
}

void Progress::finish() {
  if (bar_shown_) fmt::print(stderr, "\r\x1b[K");
  bar_shown_ = false;
  std::fflush(stderr);
}

}  // namespace servelab
