#include "tests/support/program.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>

#include "engine/record/hdf5_reader.h"

namespace servelab::test {
namespace fs = std::filesystem;

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (fs::temp_directory_path() / "servelab-test-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string TemporaryFolder::file(const std::string& name, const std::string& text) const {
  const fs::path path = fs::path(path_) / name;
  fs::create_directories(path.parent_path());
  write_file(path.string(), text);
  return path.string();
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

Program::Program(const std::vector<std::string>& arguments, long file_limit_bytes) {
  start({SERVELAB_BINARY, {}}, arguments, file_limit_bytes);
}

Program::Program(const ProgramSettings& settings, const std::vector<std::string>& arguments) {
  start(settings, arguments, 0);
}

void Program::start(const ProgramSettings& settings, const std::vector<std::string>& arguments,
                    long file_limit_bytes) {
  const std::string out = folder_ / "out";
  const std::string err = folder_ / "err";
  std::vector<std::string> words = {settings.path};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ > 0) return;
  ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT, 0600), STDOUT_FILENO);
  ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
  ::unsetenv("SERVELAB_DATA");
  for (const auto& [name, value] : settings.environment) ::setenv(name.c_str(), value.c_str(), 1);
  if (file_limit_bytes > 0) {
    rlimit limit{};
    limit.rlim_cur = limit.rlim_max = static_cast<rlim_t>(file_limit_bytes);
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  if (::chdir(SERVELAB_SOURCE_DIR) == 0) ::execv(argv[0], argv.data());
  ::_exit(127);
}

Program::~Program() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Program::signal(int number) const { ::kill(pid_, number); }

ProgramResult Program::wait() {
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  ProgramResult result;
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = read_file(folder_ / "out");
  result.err = read_file(folder_ / "err");
  return result;
}

ProgramResult run_program(const std::vector<std::string>& arguments, long file_limit_bytes) {
  return Program(arguments, file_limit_bytes).wait();
}

std::map<std::string, std::string> digests(const std::string& folder) {
  std::map<std::string, std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".h5" || entry.path().filename() == "collected.h5") continue;
    found[entry.path().filename().string()] =
        Hdf5Reader(entry.path().string()).text_attribute("/", "content_digest");
  }
  return found;
}

bool wait_for_files(const std::string& folder, std::size_t count, const std::string& suffix) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (std::chrono::steady_clock::now() < deadline) {
    std::size_t seen = 0;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      if (entry.path().string().ends_with(suffix)) ++seen;
    }
    if (seen >= count) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

}  // namespace servelab::test
