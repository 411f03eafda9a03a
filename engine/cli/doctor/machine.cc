#include "engine/cli/doctor/machine.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

namespace servelab::doctor {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostText = 64 * 1024;
constexpr int kNotStarted = 127;

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == by) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

[[noreturn]] void be_child(int output, const std::vector<char*>& arguments) {
  ::setpgid(0, 0);
  const int nowhere = ::open("/dev/null", O_RDWR);
  ::dup2(nowhere, STDIN_FILENO);
  ::dup2(nowhere, STDERR_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::execvp(arguments[0], arguments.data());
  ::_exit(kNotStarted);
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

std::string Machine::place(const std::string& path) const { return root_ + path; }

std::string Machine::text(const std::string& path) const {
  std::error_code ignored;
  if (fs::is_directory(place(path), ignored)) return "";
  std::ifstream file(place(path), std::ios::binary);
  // Some files of /sys fail while they are read.
  std::string text;
  char buffer[4096];
  while (file.read(buffer, sizeof buffer) || file.gcount() > 0) {
    text.append(buffer, static_cast<std::size_t>(file.gcount()));
  }
  return text;
}

std::string Machine::line(const std::string& path) const {
  const std::string all = text(path);
  constexpr const char* kBlanks = " \t\r";
  const std::string first = all.substr(0, all.find('\n'));
  const std::size_t begin = first.find_first_not_of(kBlanks);
  if (begin == std::string::npos) return "";
  return first.substr(begin, first.find_last_not_of(kBlanks) - begin + 1);
}

std::optional<Bytes> Machine::number(const std::string& path) const {
  const std::string first = line(path);
  Bytes value = 0;
  const auto [end, error] = std::from_chars(first.data(), first.data() + first.size(), value);
  if (error != std::errc() || end != first.data() + first.size()) return std::nullopt;
  return value;
}

std::vector<std::string> Machine::names_in(const std::string& folder) const {
  std::vector<std::string> names;
  std::error_code error;
  for (auto it = fs::directory_iterator(place(folder), error);
       !error && it != fs::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string Machine::find_program(const std::string& name, const std::string& more) const {
  for (const std::string& folder : split(variable("PATH") + ":" + more, ':')) {
    if (folder.empty()) continue;
    const std::string path = folder + "/" + name;
    std::error_code ignored;
    if (fs::is_regular_file(place(path), ignored) && ::access(place(path).c_str(), X_OK) == 0) {
      return path;
    }
  }
  return "";
}

std::string Machine::variable(const std::string& name) const {
  const char* value = std::getenv(name.c_str());
  return value != nullptr ? value : "";
}

int Machine::usable_cores() const {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (::sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
  return static_cast<int>(std::thread::hardware_concurrency());
}

bool Machine::can_write(const std::string& folder) const {
  return ::access(folder.c_str(), W_OK | X_OK) == 0;
}

std::optional<DiskSpace> Machine::space(const std::string& folder) const {
  struct statfs status {};
  if (::statfs(folder.c_str(), &status) != 0) return std::nullopt;
  const auto unit = static_cast<Bytes>(status.f_frsize);
  return DiskSpace{static_cast<Bytes>(status.f_bavail) * unit,
                   static_cast<Bytes>(status.f_blocks) * unit,
                   static_cast<std::uint32_t>(status.f_type)};
}

Output Machine::run(const std::vector<std::string>& command,
                    std::chrono::milliseconds limit) const {
  std::vector<std::string> words = command;
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  Output output;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return output;
  const auto deadline = Clock::now() + limit;
  const pid_t pid = ::fork();
  if (pid == 0) be_child(ends[1], arguments);
  ::close(ends[1]);
  if (pid > 0) {
    ::setpgid(pid, pid);  // here too: the child may not have come to it yet
    int status = -1;
    if (!read_all(ends[0], deadline, &output.text) || !reap(pid, deadline, &status)) {
      output.timed_out = true;
      ::kill(-pid, SIGKILL);
      // A process that hangs inside a driver cannot be killed at once; nobody waits for it.
      reap(pid, Clock::now() + std::chrono::milliseconds(100), &status);
    } else if (WIFEXITED(status) && WEXITSTATUS(status) != kNotStarted) {
      output.code = WEXITSTATUS(status);
    }
  }
  ::close(ends[0]);
  return output;
}

}  // namespace servelab::doctor
