#include "engine/cli/doctor/child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <thread>

namespace servelab::doctor {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostText = 64 * 1024;

[[noreturn]] void be_child(int output, const std::function<int()>& body) {
  ::setpgid(0, 0);
  const int nowhere = ::open("/dev/null", O_RDWR);
  ::dup2(nowhere, STDIN_FILENO);
  ::dup2(nowhere, STDERR_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::_exit(body());
}

int left_ms(Clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return left > 0 ? static_cast<int>(left) : 0;
}

// Until the other end is closed; false at the deadline.
bool read_all(int input, Clock::time_point deadline, std::string* text) {
  char buffer[4096];
  while (true) {
    pollfd waiting{input, POLLIN, 0};
    const int ready = ::poll(&waiting, 1, left_ms(deadline));
    if (ready == 0) return false;
    if (ready < 0 && errno == EINTR) continue;
    const ssize_t size = ready < 0 ? -1 : ::read(input, buffer, sizeof buffer);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return true;
    if (text->size() < kMostText) text->append(buffer, static_cast<std::size_t>(size));
  }
}

// A child may close its output and live on.
bool reap(pid_t pid, Clock::time_point deadline, int* status) {
  while (true) {
    const pid_t ended = ::waitpid(pid, status, WNOHANG);
    if (ended == pid || (ended < 0 && errno != EINTR)) return true;
    if (left_ms(deadline) == 0) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

ChildResult run_child(const std::function<int()>& body, std::chrono::milliseconds limit) {
  ChildResult result;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return result;
  const auto deadline = Clock::now() + limit;
  const pid_t pid = ::fork();
  if (pid == 0) be_child(ends[1], body);
  ::close(ends[1]);
  if (pid > 0) {
    ::setpgid(pid, pid);  // here too: the child may not have come to it yet
    const bool is_done =
        read_all(ends[0], deadline, &result.text) && reap(pid, deadline, &result.status);
    if (!is_done) {
      result.timed_out = true;
      ::kill(-pid, SIGKILL);
      // A process that hangs inside a driver cannot be killed at once; nobody waits for it.
      reap(pid, Clock::now() + std::chrono::milliseconds(100), &result.status);
    }
  }
  ::close(ends[0]);
  return result;
}

}  // namespace servelab::doctor
