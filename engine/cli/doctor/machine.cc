#include "engine/cli/doctor/machine.h"

#include <sched.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "engine/cli/doctor/child.h"

namespace servelab::doctor {
namespace {

namespace fs = std::filesystem;

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

}  // namespace

std::string Machine::place(const std::string& path) const { return root_ + path; }

bool Machine::exists(const std::string& path) const {
  std::error_code ignored;
  return fs::exists(place(path), ignored);
}

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

bool Machine::is_root() const { return ::geteuid() == 0; }

bool Machine::can_write(const std::string& folder) const {
  return ::access(folder.c_str(), W_OK | X_OK) == 0;
}

std::optional<DiskSpace> Machine::space(const std::string& folder) const {
  struct statvfs status {};
  if (::statvfs(folder.c_str(), &status) != 0) return std::nullopt;
  const auto unit = static_cast<Bytes>(status.f_frsize);
  return DiskSpace{static_cast<Bytes>(status.f_bavail) * unit,
                   static_cast<Bytes>(status.f_blocks) * unit};
}

Output Machine::run(const std::vector<std::string>& command,
                    std::chrono::milliseconds limit) const {
  std::vector<std::string> words = command;
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  constexpr int kNotStarted = 127;
  const ChildResult child = run_child(
      [&] {
        ::execvp(arguments[0], arguments.data());
        return kNotStarted;
      },
      limit);
  Output output;
  output.timed_out = child.timed_out;
  output.text = child.text;
  if (!child.timed_out && child.status >= 0 && WIFEXITED(child.status)) {
    output.code = WEXITSTATUS(child.status) == kNotStarted ? -1 : WEXITSTATUS(child.status);
  }
  return output;
}

GpuFacts Machine::gpus(std::chrono::milliseconds limit) const { return probe_gpus(limit); }

}  // namespace servelab::doctor
